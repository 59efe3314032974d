//go:build e2e && windows

package bed

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const (
	// Directx is the runtime shim by the name that ctr and nerdctl use.
	Directx = "io.containerd.directx.v1"
	// Runhcs is runhcs by its own name.
	Runhcs = "io.containerd.runhcs.v1"
	// Display is the resource of the inventories' GPUs.
	Display = "directx.microsoft.com/display"

	// DirectxShim is the file name of the runtime shim.
	DirectxShim = "containerd-shim-directx-v1.exe"
	// RunhcsShim is that of runhcs, on nodes the launcher's.
	RunhcsShim = "containerd-shim-runhcs-v1.exe"
	// Dxctl is the file name of dxctl.
	Dxctl = "dxctl.exe"
)

// Names of the programs on a node.
const (
	containerdExe = "containerd.exe"
	ctrExe        = "ctr.exe"
	clientExe     = "client.exe"
	plainExe      = "containerd-shim-plain-v1.exe"
)

// Plain returns the runtime that is runhcs without the shim. ctr sends options to
// runtimes with runhcs' name, and containerd 2.4 uses a protocol that runhcs does not
// have with all others.
func (n *Node) Plain() string {
	if n.containerd2() {
		return Runhcs
	}
	return "io.containerd.plain.v1"
}

// Release is the directory of another containerd and runhcs, see ../../parts/build.sh.
type Release string

// The releases, each with its versions of containerd and of hcsshim.
const (
	AKS1   Release = "aks1"   // 1.7.20 with 0.11.7
	AKS2   Release = "aks2"   // 2.0.4 with 0.12.9
	EKS    Release = "eks"    // 2.1.6 with 0.13.0
	Newest Release = "newest" // 2.4.2 with 0.15.0
)

func (r Release) containerd2() bool { return r != "" && r != AKS1 }

func (n *Node) containerd2() bool { return n.options.Release.containerd2() || n.installed2 }

// SkipsShim reports whether containerd never runs a shim for a pod's containers: 2.0.0 to 2.0.5
// connect to that of the sandbox.
func (n *Node) SkipsShim() bool { return n.options.Release == AKS2 }

// Timeouts ends containerd's configuration file. With containerd's own timeouts, 2 to 5
// seconds, a cleanup on a busy machine is interrupted and leaves the bundle.
const Timeouts = `
[timeouts]
  "io.containerd.timeout.shim.cleanup" = "2m"
  "io.containerd.timeout.shim.load" = "2m"
  "io.containerd.timeout.shim.shutdown" = "2m"
  "io.containerd.timeout.task.state" = "2m"
`

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
	// Bare leaves the shim to be installed by dxctl.exe.
	Bare bool
	// Usual uses the paths of a real node, so that no program needs flags for them.
	// Neither config.yaml nor a recorder is created. It needs a prefix of its own.
	Usual bool
	// Settings are keys of config.yaml, by default those for single devices, because
	// Wine reports a Windows that supports the class of all GPUs only.
	Settings string
	// Config is containerd's configuration file, empty for none. The default has longer
	// timeouts only. Flags override its directories, and its usual pipe is replaced.
	Config *string
}

// Node is a containerd.exe with its directory.
type Node struct {
	*Machine
	GPUs []GPU
	// Recorder writes allocation records. It is nil on a node with the usual paths
	// until [Node.OpenRecorder].
	Recorder *allocation.Recorder
	// StateDir is the product's state directory.
	StateDir string

	options    Options
	dir        string
	containerd string                 // containerd's state directory
	toml       string                 // containerd's configuration file
	pipe       string                 // the name of containerd's pipe
	image      func() (string, error) // pulls the image once

	mu     sync.Mutex // held while containerd is started or killed
	daemon *exec.Cmd
	ended  chan struct{} // closed when daemon has ended
}

// Paths of a real node.
const (
	usualDir = `C:\Program Files\containerd`
	// UsualData is containerd's data directory.
	UsualData  = `C:\ProgramData\containerd`
	usualState = `C:\ProgramData\directx-nri`
	usualPipe  = "containerd-containerd"
)

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
	case options.Usual:
		m.NeedsDoubles(t, "it changes the installed containerd")
	}
	dir := m.dir + `\` + options.Name
	n := &Node{Machine: m, options: options, dir: dir, StateDir: dir + `\state`, containerd: dir + `\run`, toml: dir + `\containerd.toml`, pipe: "dxw-" + options.Name}
	if options.Usual {
		n.dir, n.StateDir, n.containerd, n.toml, n.pipe = usualDir, usualState, UsualData+`\state`, usualDir+`\config.toml`, usualPipe
	}
	if n.GPUs = options.GPUs; n.GPUs == nil {
		n.GPUs = m.NewGPUs(options.Name)
	}
	n.image = sync.OnceValues(n.pull)
	n.install(t)
	switch {
	case options.Discover && m.Doubled:
		m.Plug(t, n.GPUs...)
	case !options.Discover:
		place(t, n.GPUs)
		n.File(t, "inventory.yaml", inventory(t, n.GPUs))
	}
	if !options.Usual {
		n.WriteSettings(t, cmp.Or(options.Settings, "assignmentMode: location-path\n"))
		n.OpenRecorder(t)
	}
	n.Start(t)
	t.Cleanup(func() {
		n.Kill()
		if t.Failed() {
			t.Logf("---- containerd's log\n%s---- the shim's log\n%s", ReadFile(t, n.Path("containerd.log")), ReadFile(t, n.Path("shim.log")))
		}
	})
	return n
}

// OpenRecorder sets Recorder, until it is closed or the test ends.
func (n *Node) OpenRecorder(t testing.TB) {
	t.Helper()
	recorder, err := allocation.OpenRecorder(t.Context(), paths.Allocations(n.StateDir), testutil.Quiet())
	testutil.NoError(t, err)
	t.Cleanup(func() { _ = recorder.Close() })
	n.Recorder = recorder
}

// install copies the node's programs into its directory.
func (n *Node) install(t testing.TB) {
	t.Helper()
	release := string(n.options.Release)
	err := errors.Join(os.MkdirAll(n.Path("real"), 0o700), os.MkdirAll(n.Path("product"), 0o700))
	for name, from := range map[string]string{
		containerdExe:            n.Executable(release, containerdExe),
		ctrExe:                   n.Executable(release, ctrExe),
		clientExe:                n.Executable(clientExe),
		RunhcsShim:               n.Executable("launcher.exe"),
		plainExe:                 n.Executable("launcher.exe"),
		DirectxShim:              n.Executable(DirectxShim),
		`product\` + Dxctl:       n.Executable(Dxctl),
		`product\` + DirectxShim: n.Executable(DirectxShim),
		`real\` + RunhcsShim:     n.Executable(release, RunhcsShim),
	} {
		if !n.options.Bare || name != DirectxShim {
			err = errors.Join(err, copyFile(from, n.Path(name)))
		}
	}
	if err != nil {
		t.Fatalf("install the node's programs: %v", err)
	}
	config := n.options.Config
	if config == nil {
		usual := "version = 2\n" + Timeouts
		config = &usual
	}
	if *config != "" {
		// Flags do not set the pipe of ttrpc.
		Replace(t, n.toml, []byte(strings.ReplaceAll(*config, usualPipe, n.pipe)))
	}
}

// ContainerdConfig returns containerd's configuration file, nil if there is none.
func (n *Node) ContainerdConfig(t testing.TB) []byte { return ReadFile(t, n.toml) }

// containerdArgs returns the arguments of containerd.exe with a configuration file of the
// node's directory, empty for its own.
func (n *Node) containerdArgs(config string) []string {
	if n.options.Usual {
		return nil
	}
	args := []string{"--root", n.Path("root"), "--state", n.containerd, "--address", n.Pipe()}
	if config != "" {
		return append(args, "--config", n.Path(config))
	}
	if _, err := os.Stat(n.toml); err == nil {
		args = append(args, "--config", n.toml)
	}
	return args
}

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
	if !n.options.Usual { // containerd looks for shims on PATH first.
		cmd.Env = append(cmd.Env, "DIRECTX_NRI_STATE_DIR="+n.StateDir, "PATH="+n.dir+";"+os.Getenv("PATH"))
	}
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
	shim := plainExe
	if n.containerd2() {
		shim = RunhcsShim
	}
	if !n.options.Discover {
		settings = fmt.Sprintf("inventory: '%s'\n", n.Path("inventory.yaml")) + settings
	}
	n.File(t, "config.yaml", fmt.Sprintf("apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\nshim:\n  realShim: '%s'\n  log: '%s'\n%s",
		n.Path(shim), n.Path("shim.log"), settings))
	testutil.NoError(t, n.Apply())
}

// Apply compiles config.yaml into the state directory with 'dxctl.exe config apply'.
func (n *Node) Apply() error {
	_, err := n.run(stepTimeout, nil, `product\`+Dxctl, "config", "apply", "--config", n.Path("config.yaml"))
	return err
}

// Start starts containerd.exe and waits until it answers.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	if err := n.start(n.containerdArgs("")); err != nil {
		t.Fatalf("%v\n%s", err, ReadFile(t, n.Path("containerd.log")))
	}
}

func (n *Node) start(args []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	log, err := os.OpenFile(n.Path("containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := n.Command(context.Background(), n.Path(containerdExe), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start containerd.exe: %w", err)
	}
	n.daemon, n.ended = cmd, make(chan struct{})
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	go func(ended chan struct{}) { // Ends with the process; Kill waits for it.
		defer cancel()
		defer close(ended)
		_ = cmd.Wait() // The status is in cmd.ProcessState.
	}(n.ended)
	// runhcs sends its events to the second pipe.
	if _, _, err := n.output(n.Command(ctx, n.Path(clientExe), "wake", n.Pipe(), n.Pipe()+".ttrpc")); err != nil {
		select {
		case <-n.ended:
			return fmt.Errorf("containerd.exe has ended: %s", cmd.ProcessState)
		default:
			return fmt.Errorf("containerd.exe does not answer: %w", err)
		}
	}
	return nil
}

// Kill kills containerd.exe, but not its shims.
func (n *Node) Kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.daemon.Process.Kill() // An error means that it has ended.
	<-n.ended
}

// run runs a program of the node and returns its standard output. The error has its
// standard error.
func (n *Node) run(limit time.Duration, stdin []byte, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := n.Command(ctx, n.Path(program), args...)
	cmd.Stdin = bytes.NewReader(stdin)
	stdout, _, err := n.output(cmd)
	return stdout, err
}

// Dxctl runs dxctl.exe and returns its output. It fails the test if the exit status is
// another.
func (n *Node) Dxctl(t testing.TB, status int, args ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return n.Exec(t, status, n.Command(ctx, n.Path("product", Dxctl), args...))
}

// Shim returns the path of the shim.
func (n *Node) Shim() string { return n.Path(DirectxShim) }

// Processes returns the shim processes of a container: those with the name of a runtime
// shim and the ID as an argument.
func (n *Node) Processes(id string) []Process {
	return slices.DeleteFunc(processes(), func(p Process) bool {
		return !strings.Contains(p.Command, "containerd-shim-") || !slices.Contains(strings.Fields(p.Command), id)
	})
}

// Record writes an allocation record and returns its token.
func (n *Node) Record(t testing.TB, resource string, replicas ...allocation.Replica) allocation.Token {
	t.Helper()
	token, err := n.Recorder.Record(t.Context(), allocation.Record{Resource: resource, Replicas: replicas})
	testutil.NoError(t, err)
	return token
}

// RecordFile returns the path of the record of token.
func (n *Node) RecordFile(token allocation.Token) string {
	return filepath.Join(paths.Allocations(n.StateDir), string(token.ID())+".json")
}

// ShimPaths returns runtime_path of the handlers that use the shim, in the file and in
// the running containerd, from the JSON output of 'dxctl.exe capabilities'.
func ShimPaths(t testing.TB, out string) map[string]string {
	t.Helper()
	state := Decode[struct {
		Containerd struct {
			Handlers []struct {
				Name, RuntimePath               string
				Configured, Loaded, Annotations bool
			}
		}
	}](t, out)
	paths := map[string]string{}
	for _, h := range state.Containerd.Handlers {
		if !h.Configured || !h.Loaded {
			continue
		}
		paths[h.Name] = h.RuntimePath
		if !h.Annotations {
			t.Errorf("handler %s does not pass on the product's annotations", h.Name)
		}
	}
	return paths
}
