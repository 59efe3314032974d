package shim

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/shim/realshim"
	"github.com/directx-nri/directx-nri/shim/shimfile"
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

// Main runs the shim with the process's arguments and returns the exit status. files are the node's.
// In a call of containerd other than -info, only the real shim writes to standard output.
func Main(version string, files decision.Files) int {
	args := os.Args[1:]
	stateDir := paths.Default().State
	if len(args) == 1 {
		switch args[0] {
		case shimfile.SelfTestFlag:
			if err := selfTest(files); err != nil {
				fmt.Fprintf(os.Stderr, "%s: self-test: %s\n", shimfile.BaseName, errlog.Text(err))
				return exitFailure
			}
			fmt.Println(shimfile.SelfTestPassed)
			return 0
		case "--version":
			fmt.Println(shimfile.BaseName, version)
			return 0
		case "--help", "-h":
			fmt.Printf(help, shimfile.BaseName, shimfile.SelfTestFlag, strings.TrimSuffix(realshim.Default(), ".exe"),
				stateDir, paths.StateDirVariable, shimfile.RuntimeName)
			return 0
		}
	}
	self, err := os.Executable()
	bundle, bundleErr := os.Getwd()
	if err = cmp.Or(err, bundleErr); err != nil {
		fmt.Fprintf(os.Stderr, "directx-nri: find own executable and working directory: %v", err)
		return exitFailure
	}
	s := &shim{
		self: self, args: args, env: os.Environ(), bundle: bundle, stateDir: stateDir, version: version, files: files,
		stdout: os.Stdout, stderr: os.Stderr,
	}
	return s.main()
}

// selfTest tests whether the shim edits the spec of a made-up container that requests a GPU, and leaves
// the spec of a container without a request unchanged. The files of the made-up GPU exist on each node.
func selfTest(files decision.Files) error {
	dir, err := os.MkdirTemp(os.Getenv(shimfile.SelfTestParent), "directx-nri-self-test-")
	if err != nil {
		return err
	}
	// A virus scanner may still have files open. 'dxctl runtime uninstall' removes them.
	defer func() { _ = os.RemoveAll(dir) }()
	gpu := discovery.Device{InstanceID: "SELF-TEST", SupportsDisplay: true}
	platform, want := `"linux":{}`, `"path":"/dev/null"`
	if runtime.GOOS == "windows" {
		gpu.LocationPath = "PCIROOT(0)#PCI(1B00)"
		platform, want = `"windows":{"layerFolders":["C:\\none"]}`, ocispec.IDTypeLocationPath
	} else {
		gpu.DeviceNodes = []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/null"}}
	}
	p := policy.Default()
	p.UseInventory, p.Standalone.Environment = true, true
	p.Assignment = policy.AssignByPath   // on each version of Windows
	p.Shim.Log = os.DevNull              // Windows keeps the directory of an open file.
	state := filepath.Join(dir, "state") // The directory itself is not private on Windows.
	if err := errors.Join(node.CompiledInventory(state).Write([]discovery.Device{gpu}), policy.Write(state, p)); err != nil {
		return err
	}
	for _, requests := range []bool{true, false} {
		variable := "A=B"
		if requests {
			variable = decision.VisibleVariable + "=all"
		}
		before := `{"ociVersion":"1.1.0","process":{"env":["` + variable + `"]},` + platform + `}`
		config := filepath.Join(dir, specName)
		if err := os.WriteFile(config, []byte(before), 0o600); err != nil {
			return err
		}
		s := &shim{args: []string{"start"}, bundle: dir, stateDir: state, files: files}
		if err := s.editBundle(""); err != nil {
			return err
		}
		after, err := os.ReadFile(config)
		if err != nil {
			return err
		}
		ok := string(after) == before
		if requests {
			ok = bytes.Contains(after, []byte(want))
		}
		if !ok {
			return fmt.Errorf("the spec of a container with %s is now %s", variable, after)
		}
	}
	return nil
}
