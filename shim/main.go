package shim

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/shimfile"
)

const help = `%[1]s is a runtime shim for containerd that adds GPUs to containers.

containerd runs it. By hand, use

  %[1]s %[2]s   test it on this machine, with a made-up container
  %[1]s --version

Kubernetes: set runtime_path of the runtime handlers to this file, as
'dxctl runtime configure' does. Without Kubernetes:

  ctr run --runtime %[6]s --annotation directx.microsoft.com/visible-devices=all …

It runs the real shim, %[3]s, from its own directory or PATH, unless the
configuration names another one. The node policy is in %[4]s; the
environment variable %[5]s names another directory.
`

// Main runs the shim with the process's arguments and returns the exit status.
// When containerd calls, only the real shim writes to standard output.
func Main(version string) int {
	args := os.Args[1:]
	stateDir := paths.Default().State
	if len(args) == 1 {
		switch args[0] {
		case shimfile.SelfTestFlag:
			if err := selfTest(); err != nil {
				fmt.Fprintf(os.Stderr, "%s: self-test: %v\n", shimfile.Base, err)
				return exitFailure
			}
			fmt.Println(shimfile.SelfTestPassed)
			return 0
		case "--version":
			fmt.Println(shimfile.Base, version)
			return 0
		case "--help", "-h":
			fmt.Printf(help, shimfile.Base, shimfile.SelfTestFlag, strings.TrimSuffix(defaultRuntime, ".exe"), stateDir, paths.StateDirVariable, shimfile.RuntimeName)
			return 0
		}
	}
	self, err := os.Executable()
	bundle, bundleErr := os.Getwd()
	if err = cmp.Or(err, bundleErr); err != nil {
		fmt.Fprintf(os.Stderr, "directx-nri: find own executable and working directory: %v", err)
		return exitFailure
	}
	return newShim(call{
		self: self, args: args, env: os.Environ(), bundle: bundle, stateDir: stateDir, version: version, stdout: os.Stdout, stderr: os.Stderr,
	}).main()
}
