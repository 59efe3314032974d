//go:build e2e && windows

package bed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const (
	// Display is the resource of the inventories' GPUs.
	Display = "directx.microsoft.com/display"

	// DirectxShim is the file name of the runtime shim among the product's programs.
	DirectxShim = "containerd-shim-directx-v1.exe"
	// Dxctl is the file name of dxctl.
	Dxctl = "dxctl.exe"
)

// Names of the programs on a node.
const (
	containerdExe = "containerd.exe"
	ctrExe        = "ctr.exe"
)

// Release is the directory of another containerd and runhcs, see ../../parts/build.sh.
type Release string

// The releases, each with its versions of containerd and of hcsshim.
const (
	AKS2   Release = "aks2"   // 2.0.4 with 0.12.9
	Newest Release = "newest" // 2.4.2 with 0.15.0
)

// Options describe a node. The default is containerd 1.7.35 with its version of runhcs,
// or what is installed on Windows itself.
type Options struct {
	// Name is the node's directory and part of its pipes' names.
	Name string
	// Release is empty by default.
	Release Release
	// GPUs are those of [Machine.NewGPUs] by default.
	GPUs []GPU
	// Discover has GPUs that Windows reports, without an inventory file: the machine's own, or
	// under Wine GPUs, which are plugged in.
	Discover bool
	// Assigned has the devices of the tests' containers assigned on Windows itself, too, where
	// the launcher removes them otherwise.
	Assigned bool
	// Bare is a node without the product.
	Bare bool
	// Settings are keys of config.yaml, by default those for single devices, because
	// Wine reports a Windows that supports the class of all GPUs only.
	Settings string
	// Config is containerd's configuration file. By default there is none.
	Config string
}

// Node is a containerd.exe with its directory.
type Node struct {
	*Machine
	GPUs []GPU
	// Recorder writes allocation records.
	Recorder *allocation.Recorder
	// StateDir is the product's state directory.
	StateDir string

	options    Options
	dir        string
	containerd string        // containerd's state directory
	pipe       string        // the name of containerd's pipe
	attempts   atomic.Uint32 // of CRI containers
	daemon     *exec.Cmd
}

// usualDir is the directory of containerd on a real node, and of the network plugins.
const usualDir = `C:\Program Files\containerd`

// StartNode sets up a node and starts it. It ends with the test.
func (m *Machine) StartNode(t testing.TB, options Options) *Node {
	t.Helper()
	switch {
	case m.missing != "" && os.Getenv("CI") == "true":
		t.Fatal(m.missing)
	case m.missing != "":
		t.Skip(m.missing)
	case options.Release != "":
		m.NeedsDoubles(t, "the installed containerd is the only one")
	}
	if !m.Doubled && options.Config == "" {
		options.Config = "version = 2\n" + m.CNI(t)
	}
	dir := m.dir + `\` + options.Name
	n := &Node{Machine: m, options: options, dir: dir, StateDir: dir + `\state`, containerd: dir + `\run`, pipe: "dxw-" + options.Name}
	if n.GPUs = options.GPUs; n.GPUs == nil {
		n.GPUs = m.NewGPUs(options.Name)
	}
	n.install(t)
	switch {
	case options.Discover && m.Doubled:
		m.Plug(t, n.GPUs...)
	case !options.Discover:
		place(t, n.GPUs)
		n.File(t, "inventory.yaml", inventory(t, n.GPUs))
	}
	n.WriteSettings(t, cmp.Or(options.Settings, "assignmentMode: location-path\n"))
	recorder, err := allocation.OpenRecorder(t.Context(), paths.Allocations(n.StateDir), testutil.Quiet())
	testutil.NoError(t, err)
	t.Cleanup(func() { _ = recorder.Close() })
	n.Recorder = recorder
	n.Start(t)
	t.Cleanup(func() {
		n.Kill()
		if t.Failed() {
			t.Logf("---- containerd's log\n%s---- the shim's log\n%s", ReadFile(t, n.Path("containerd.log")), ReadFile(t, n.Path("shim.log")))
		}
	})
	n.importImage(t)
	return n
}

// install copies the node's programs into its directory.
func (n *Node) install(t testing.TB) {
	t.Helper()
	release := string(n.options.Release)
	files := map[string]string{
		n.Path(containerdExe):        n.Executable(release, containerdExe),
		n.Path(ctrExe):               n.Executable(release, ctrExe),
		n.Path("real", paths.Runhcs): n.Executable(release, paths.Runhcs),
		n.Shim():                     n.Launcher(),
	}
	if !n.options.Bare {
		files[n.Shim()], files[paths.RealShim(n.dir)] = n.Product(), n.Launcher()
	}
	for to, from := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), copyFile(from, to)); err != nil {
			t.Fatalf("install the node's programs: %v", err)
		}
	}
	if n.options.Config != "" {
		n.File(t, configFile, n.options.Config)
	}
}

// configFile is containerd's configuration file in the node's directory, if there is one.
const configFile = "config.toml"

// containerdArgs returns the arguments of containerd.exe.
func (n *Node) containerdArgs() []string {
	args := []string{"--root", n.Path("root"), "--state", n.containerd, "--address", n.Pipe()}
	if n.options.Config != "" {
		args = append(args, "--config", n.Path(configFile))
	}
	return args
}

// Shim returns the path of the shim that containerd runs: the product's, except on a bare node.
func (n *Node) Shim() string { return n.Path(paths.Runhcs) }

// Launcher returns the path of the program that stands for runhcs on a node, see ../launcher.
func (m *Machine) Launcher() string { return m.Executable("launcher.exe") }

// Product returns the path of the product's shim, as it is delivered.
func (m *Machine) Product() string { return m.Executable(DirectxShim) }

// Name returns an ID that no other node has: they share one HCS.
func (n *Node) Name(suffix string) string { return n.options.Name + "-" + suffix }

// Path returns the path of a file in the node's directory.
func (n *Node) Path(elements ...string) string {
	return filepath.Join(append([]string{n.dir}, elements...)...)
}

// Command is [Machine.Command] with the node's state directory in the environment.
func (n *Node) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := n.Machine.Command(ctx, program, args...)
	cmd.Env = os.Environ()
	// containerd looks for shims on PATH first.
	cmd.Env = append(cmd.Env, "DIRECTX_NRI_STATE_DIR="+n.StateDir, "PATH="+n.dir+";"+os.Getenv("PATH"))
	if !n.Doubled && !n.options.Discover && !n.options.Assigned {
		cmd.Env = append(cmd.Env, "LAUNCHER_REMOVES_GPUS=1")
	}
	return cmd
}

// Pipe returns containerd's address.
func (n *Node) Pipe() string { return `\\.\pipe\` + n.pipe }

// File writes a file in the node's directory and returns its path.
func (n *Node) File(t testing.TB, name, content string) string {
	t.Helper()
	Replace(t, n.Path(name), []byte(content))
	return n.Path(name)
}

// WriteSettings replaces config.yaml with the keys that the node needs and settings,
// and applies it. Driver files are mounted on each version of Windows, unless settings have
// driverFiles.
func (n *Node) WriteSettings(t testing.TB, settings string) {
	t.Helper()
	if !strings.Contains(settings, "driverFiles") {
		settings += "driverFiles: mount\n"
	}
	if !n.options.Discover {
		settings = fmt.Sprintf("inventory: '%s'\n", n.Path("inventory.yaml")) + settings
	}
	n.File(t, "config.yaml", fmt.Sprintf("apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\nstandalone: {environment: true}\nshim: {log: '%s'}\n%s",
		n.Path("shim.log"), settings))
	_, err := config.Compiler{File: n.Path("config.yaml"), StateDir: n.StateDir, NodeOS: "windows"}.Apply()
	testutil.NoError(t, err)
}

// Start starts containerd.exe and waits until it answers.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(n.Path("containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	testutil.NoError(t, err)
	defer log.Close()
	n.daemon = n.Command(context.Background(), n.Path(containerdExe), n.containerdArgs()...)
	n.daemon.Stdout, n.daemon.Stderr = log, log
	testutil.NoError(t, n.daemon.Start())
	// runhcs sends its events to the second pipe. Wine loses the first connection to each.
	for _, name := range []string{n.Pipe(), n.Pipe() + ".ttrpc"} {
		Eventually(t, "containerd.exe answers", func() error {
			pipe, err := os.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				return fmt.Errorf("%w: %s", err, ReadFile(t, n.Path("containerd.log")))
			}
			return pipe.Close()
		})
	}
}

// Kill kills containerd.exe, but not its shims.
func (n *Node) Kill() {
	_ = n.daemon.Process.Kill() // An error means that it has ended.
	_ = n.daemon.Wait()
}

// run runs a program of the node and returns its standard output. The error has its
// standard error.
func (n *Node) run(limit time.Duration, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	stdout, _, err := n.output(n.Command(ctx, n.Path(program), args...))
	return stdout, err
}

// Dxctl runs dxctl.exe and returns its output. It fails the test if the exit status is
// another.
func (n *Node) Dxctl(t testing.TB, status int, args ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return n.Exec(t, status, n.Command(ctx, n.Executable(Dxctl), args...))
}

// Processes returns the shim processes of a container: those with the name of a runtime
// shim and the ID as an argument.
func (n *Node) Processes(id string) []Process {
	return slices.DeleteFunc(processes(), func(p Process) bool {
		return !strings.Contains(p.Command, "containerd-shim-") || !slices.Contains(strings.Fields(p.Command), id)
	})
}

// Record writes an allocation record and returns its ID.
func (n *Node) Record(t testing.TB, replicas ...allocation.Replica) allocation.ID {
	t.Helper()
	id, err := n.Recorder.Record(t.Context(), allocation.Record{Resource: Display, Replicas: replicas})
	testutil.NoError(t, err)
	return id
}

// RecordFile returns the path of a record.
func (n *Node) RecordFile(id allocation.ID) string {
	return filepath.Join(paths.Allocations(n.StateDir), string(id)+".json")
}
