package shim

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

const help = `%[1]s is a runtime shim for containerd that adds GPUs to containers.

containerd runs it. By hand, use

  %[1]s %[2]s   test it on this machine, with a made-up container
  %[1]s --version

On Windows, directx-advertiser or 'dxctl runtime install' puts it in the place of
containerd-shim-runhcs-v1.exe, which it runs. On Linux, it runs containerd-shim-runc-v2:

  ctr run --runtime io.containerd.directx.v1 --annotation directx.microsoft.com/visible-devices=all …

The node policy is in %[3]s; the environment variable %[4]s names another directory.
`

// Main runs the shim with the process's arguments and returns the exit status. files are the node's.
// In a call of containerd, only the real shim writes to standard output.
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
			fmt.Printf(help, shimfile.BaseName, shimfile.SelfTestFlag, stateDir, paths.StateDirVariable)
			return 0
		}
	}
	program, err := calledBy()
	bundle, bundleErr := os.Getwd()
	if err = cmp.Or(err, bundleErr); err != nil {
		fmt.Fprintf(os.Stderr, "directx-nri: find own program and working directory: %v", err)
		return exitFailure
	}
	s := &shim{
		program: program, args: args, env: os.Environ(), bundle: bundle, stateDir: stateDir, files: files, stderr: os.Stderr,
		logger: newLog(stateDir),
	}
	return s.main()
}

// calledBy returns the path by which this program was called. While the program runs, its file can be moved,
// and [os.Executable] returns the new path then. By hand, the path may not be absolute.
func calledBy() (string, error) {
	if filepath.IsAbs(os.Args[0]) {
		return os.Args[0], nil
	}
	return os.Executable()
}

// selfTest tests whether the shim edits the spec of a made-up container that requests a GPU. The files of the made-up
// GPU exist on each node.
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
	state := filepath.Join(dir, "state") // On Windows, the directory itself is private only if its parent is.
	if err := errors.Join(node.CompiledInventory(state).Write([]discovery.Device{gpu}), policy.Write(state, p)); err != nil {
		return err
	}
	config := filepath.Join(dir, specName)
	before := `{"ociVersion":"1.1.0","process":{"env":["` + decision.VisibleVariable + `=all"]},` + platform + `}`
	if err := os.WriteFile(config, []byte(before), 0o600); err != nil {
		return err
	}
	s := &shim{args: []string{"start"}, bundle: dir, stateDir: state, files: files, logger: newLog(state)}
	if err := s.editBundle(); err != nil {
		return err
	}
	after, err := os.ReadFile(config)
	if err == nil && !bytes.Contains(after, []byte(want)) {
		err = fmt.Errorf("the spec is now %s", after)
	}
	return err
}
