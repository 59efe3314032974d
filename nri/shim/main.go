package shim

import (
	"context"
	"fmt"
	"os"
	"strings"

	"directx-nri/internal/config"
	"directx-nri/internal/shimfile"
)

const help = `%[1]s is a runtime shim for containerd that gives containers their GPUs.

containerd calls it; there is nothing to call it by hand for but

  %[1]s %[2]s   try it on this machine, with a made-up container
  %[1]s --version

Kubernetes: set runtime_path of the runtime handlers to this file, which
"dxctl runtime configure" does. Without Kubernetes:

  ctr run --runtime io.containerd.directx.v1 --env DIRECTX_VISIBLE_DEVICES=all …

It runs the real shim, %[3]s, from its own folder or PATH. Its configuration
file is %[4]s.
`

// Main runs the shim with the process' arguments and returns the exit status.
// Nothing but the real shim writes to standard output when containerd calls.
func Main(version string) int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintf(os.Stderr, "directx-nri: find our own executable: %v", err)
		return exitFailure
	}
	args := os.Args[1:]
	if isStandIn(self) {
		return standIn(args, os.Stdin, os.Stdout)
	}
	if len(args) == 1 {
		switch args[0] {
		case shimfile.SelfTestFlag:
			return selfTestMain(self)
		case "--version":
			fmt.Println(shimfile.Base, version)
			return 0
		case "--help", "-h":
			fmt.Printf(help, shimfile.Base, shimfile.SelfTestFlag, strings.TrimSuffix(usualShim, ".exe"), config.Path())
			return 0
		}
	}
	bundle, err := os.Getwd()
	if err != nil {
		fmt.Fprintf(os.Stderr, "directx-nri: find the working folder: %v", err)
		return exitFailure
	}
	return Run(Call{
		Self: self, Args: args, Env: os.Environ(), Bundle: bundle,
		ConfigPath: config.Path(), Stderr: os.Stderr,
	})
}

func selfTestMain(self string) int {
	if err := SelfTest(context.Background(), self); err != nil {
		fmt.Fprintf(os.Stderr, "%s: self-test: %v\n", shimfile.Base, err)
		return exitFailure
	}
	fmt.Println("self-test passed")
	return 0
}
