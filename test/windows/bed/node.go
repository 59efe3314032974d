//go:build e2e && windows

package bed

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const (
	// Display is the resource of the inventories' GPUs.
	Display = "directx.microsoft.com/display"

	containerdExe = "containerd.exe"
	ctrExe        = "ctr.exe"

	// configFile is containerd's configuration file. Under Wine, most nodes have none.
	configFile = "config.toml"
)

// allAnnotations is the part of it for AllAnnotations. A runtime there replaces the default one of its name. An
// asterisk matches no slash.
const allAnnotations = `
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runhcs-wcow-process]
  runtime_type = "io.containerd.runhcs.v1"
  pod_annotations = ["*", "*/*"]
  container_annotations = ["*", "*/*"]
`

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
	// Bare is a node without the product.
	Bare bool
	// Settings are keys of config.yaml, by default those for single devices, because
	// Wine reports a Windows that supports the class of all GPUs only.
	Settings string
	// AllAnnotations makes containerd hand all annotations of pods and containers on to their specs.
	AllAnnotations bool
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
	t.Cleanup(func() {
		logs, _ := filepath.Glob(n.Path("*.log")) // The pattern is well formed.
		for _, log := range logs {
			if t.Failed() {
				t.Logf("---- %s\n%s", log, ReadFile(t, log))
			}
		}
	})
	n.Start(t)
	t.Cleanup(n.Kill)
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
	var config string
	if !n.Doubled {
		config = n.cni(t)
	}
	if n.options.AllAnnotations {
		config += allAnnotations
	}
	if config != "" {
		n.File(t, configFile, "version = 2\n"+config)
	}
}

// Shim returns the path of the shim that containerd runs: the product's, except on a bare node.
func (n *Node) Shim() string { return n.Path(paths.Runhcs) }

// Launcher returns the path of the program that stands for runhcs on a node, see ../launcher.
func (m *Machine) Launcher() string { return m.Executable("launcher.exe") }

// Product returns the path of the product's shim, as it is delivered.
func (m *Machine) Product() string { return m.Executable("containerd-shim-directx-v1.exe") }

// Name returns an ID that no other node has: they share one HCS.
func (n *Node) Name(suffix string) string { return n.options.Name + "-" + suffix }

// Path returns the path of a file in the node's directory.
func (n *Node) Path(elements ...string) string {
	return filepath.Join(append([]string{n.dir}, elements...)...)
}

// environment returns the environment variables of the node's programs.
func (n *Node) environment() []string {
	// containerd looks for shims on PATH first.
	env := []string{"DIRECTX_NRI_STATE_DIR=" + n.StateDir, "PATH=" + n.dir + ";" + os.Getenv("PATH")}
	if !n.Doubled && !n.options.Discover {
		env = append(env, "LAUNCHER_REMOVES_GPUS=1")
	}
	return env
}

// Run is [Machine.Run] with the node's state directory in the environment.
func (n *Node) Run(program string, args ...string) (stdout string, err error) {
	return n.RunIn(n.dir, n.environment(), program, args...)
}

// Dxctl runs dxctl.exe and returns its output.
func (n *Node) Dxctl(args ...string) (stdout string, err error) {
	return n.Run(n.Executable("dxctl.exe"), args...)
}

// Daemon starts a program whose output goes to NAME.log in the node's directory.
func (n *Node) Daemon(t testing.TB, name, program string, args ...string) *exec.Cmd {
	t.Helper()
	log, err := os.OpenFile(n.Path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	testutil.NoError(t, err)
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = n.dir, append(os.Environ(), n.environment()...)
	cmd.Stdout, cmd.Stderr = log, log
	testutil.NoError(t, cmd.Start())
	return cmd
}

// Kill kills a program that was started.
func Kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // An error means that it has ended.
	_ = cmd.Wait()
}

// Pipe returns containerd's address.
func (n *Node) Pipe() string { return `\\.\pipe\` + n.pipe }

// File writes a file in the node's directory.
func (n *Node) File(t testing.TB, name, content string) {
	t.Helper()
	Replace(t, n.Path(name), []byte(content))
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
	n.File(t, "config.yaml", fmt.Sprintf("apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\nstandalone: {environment: true}\n%s", settings))
	_, err := config.Compiler{File: n.Path("config.yaml"), StateDir: n.StateDir, NodeOS: "windows"}.Apply()
	testutil.NoError(t, err)
}

// Start starts containerd.exe and waits until it answers.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	args := []string{"--root", n.Path("root"), "--state", n.containerd, "--address", n.Pipe()}
	if ReadFile(t, n.Path(configFile)) != nil {
		args = append(args, "--config", n.Path(configFile))
	}
	n.daemon = n.Daemon(t, "containerd", n.Path(containerdExe), args...)
	// runhcs sends its events to the second pipe. Wine loses the first connection to each.
	for _, name := range []string{n.Pipe(), n.Pipe() + ".ttrpc"} {
		Eventually(t, "containerd.exe answers", func() error {
			pipe, err := os.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			return pipe.Close()
		})
	}
}

// Kill kills containerd.exe, but not its shims.
func (n *Node) Kill() { Kill(n.daemon) }

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
