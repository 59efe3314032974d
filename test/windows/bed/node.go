//go:build e2e && linux

package bed

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"directx-nri/internal/allocation"
	"directx-nri/internal/paths"
	"directx-nri/internal/testutil"
	suite "directx-nri/test/bed"
)

const (
	// Directx is the runtime shim by the name that ctr and nerdctl use.
	Directx = "io.containerd.directx.v1"
	// Runhcs is runhcs by its own name.
	Runhcs = "io.containerd.runhcs.v1"
	// Display is the resource of the inventories' GPUs.
	Display = "directx.microsoft.com/display"
	// Dxctl is the file name of dxctl.
	Dxctl = dxctlExe

	defaultNamespace = "default"
)

// Plain returns the runtime that is runhcs without the shim. ctr sends options to
// runtimes with runhcs' name, and containerd 2.4 uses a protocol that runhcs does not
// have with all others.
func (n *Node) Plain() string {
	if n.options.Containerd2 {
		return Runhcs
	}
	return "io.containerd.plain.v1"
}

// patience limits a single step, which takes a few seconds on a machine of two cores. A
// command that takes longer hangs, and its error shows all processes of the prefix.
const patience = 90 * time.Second

// limitFor limits a step that concerns several containers.
func limitFor(containers int) time.Duration {
	return patience + time.Duration(containers)*5*time.Second
}

// Timeouts ends containerd's configuration file. With containerd's own timeouts, 2 to 5
// seconds, a cleanup on a busy machine is interrupted and leaves the bundle.
const Timeouts = `
[timeouts]
  "io.containerd.timeout.shim.cleanup" = "2m"
  "io.containerd.timeout.shim.load" = "2m"
  "io.containerd.timeout.shim.shutdown" = "2m"
  "io.containerd.timeout.task.state" = "2m"
`

// Options describe a node. The default is containerd 1.7.35 with its version of runhcs.
type Options struct {
	// Name is the node's directory on drive C: and part of its pipes' names.
	Name string
	// Containerd2 selects the newest containerd, NewHcsshim the newest runhcs.
	Containerd2, NewHcsshim bool
	// Inventory has the node's GPUs.
	Inventory *Inventory
	// Live plugs the GPUs in as hardware, instead of writing an inventory file.
	Live bool
	// Bare leaves the shim to be installed by dxctl.exe.
	Bare bool
	// HCSAnswers makes HCS answer queries of the shim and of host processes. The newest
	// runhcs needs more of HCS than the double has.
	HCSAnswers bool
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
	*Wine
	// Recorder writes allocation records. It is nil on a node with the usual paths
	// until [Node.OpenRecorder].
	Recorder *allocation.Recorder

	options Options
	dir     string // Windows path
	log     string

	mu     sync.Mutex // held while containerd is started or killed
	daemon *exec.Cmd
	ended  chan struct{} // closed when daemon has ended
}

// StartNode sets up a node and starts it. It ends with the test.
func StartNode(t testing.TB, w *Wine, options Options) *Node {
	t.Helper()
	n := &Node{Wine: w, options: options, dir: `C:\` + options.Name, log: filepath.Join(w.dir, options.Name+".log")}
	if options.Usual {
		n.dir = usualDir
	}
	n.install(t)
	if options.Live {
		w.Plug(t, options.Inventory.Hardware(t, w))
	} else {
		options.Inventory.place(t, w)
		n.File(t, "inventory.yaml", options.Inventory.yaml())
	}
	if !options.Usual {
		n.WriteSettings(t, cmp.Or(options.Settings, "assignmentMode: location-path\n"))
		n.OpenRecorder(t)
	}
	n.Start(t)
	t.Cleanup(func() {
		n.Kill()
		if t.Failed() {
			t.Logf("---- containerd's log\n%s", n.Log())
			t.Logf("---- the shim's log\n%s", n.read(t, "shim.log"))
		}
	})
	return n
}

// OpenRecorder sets Recorder, until it is closed or the test ends.
func (n *Node) OpenRecorder(t testing.TB) {
	t.Helper()
	recorder, err := allocation.OpenRecorder(t.Context(), paths.Allocations(n.StateDir()), testutil.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = recorder.Close() })
	n.Recorder = recorder
}

// install copies the node's programs into its directory.
func (n *Node) install(t testing.TB) {
	t.Helper()
	containerd, hcsshim := windowsParts, windowsParts
	if n.options.Containerd2 {
		containerd = containerd2
	}
	if n.options.NewHcsshim {
		hcsshim = newHcsshim
	}
	for _, dir := range []string{"real", "product"} {
		if err := os.MkdirAll(n.Linux(n.Path(dir)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	launcher := filepath.Join(n.built, "launcher.exe")
	for name, from := range map[string]string{
		containerdExe:           n.parts.stock(containerd, containerdExe),
		ctrExe:                  n.parts.stock(containerd, ctrExe),
		clientExe:               n.parts.stock(windowsParts, clientExe),
		runhcsExe:               launcher,
		plainExe:                launcher,
		directxExe:              filepath.Join(n.parts.products, directxExe),
		`product\` + dxctlExe:   filepath.Join(n.parts.products, dxctlExe),
		`product\` + directxExe: filepath.Join(n.parts.products, directxExe),
		`real\` + runhcsExe:     n.parts.stock(hcsshim, runhcsExe),
	} {
		if n.options.Bare && name == directxExe {
			continue
		}
		if err := copyFile(from, n.Linux(n.Path(name))); err != nil {
			t.Fatalf("copy %s to the node: %v", name, err)
		}
	}
	switch config := n.options.Config; {
	case config == nil:
		n.File(t, n.containerdToml(), "version = 2\n"+Timeouts)
	case *config != "":
		// Flags do not set the pipe of ttrpc.
		n.File(t, n.containerdToml(), strings.ReplaceAll(*config, usualPipe, n.pipeName()))
	}
}

// containerdToml returns the name of containerd's configuration file. A file with the
// usual name is read even if containerd starts without --config.
func (n *Node) containerdToml() string {
	if n.options.Usual {
		return "config.toml"
	}
	return "containerd.toml"
}

// ContainerdConfig returns containerd's configuration file, nil if there is none.
func (n *Node) ContainerdConfig(t testing.TB) []byte { return n.read(t, n.containerdToml()) }

// containerdArgs returns the arguments of containerd.exe.
func (n *Node) containerdArgs() []string {
	if n.options.Usual {
		return nil
	}
	if _, err := os.Stat(n.Linux(n.Path(n.containerdToml()))); err != nil {
		return n.containerdArgsWith("")
	}
	return n.containerdArgsWith(n.containerdToml())
}

// containerdArgsWith returns them for a configuration file in the node's directory.
func (n *Node) containerdArgsWith(config string) []string {
	args := []string{"--root", n.Path("root"), "--state", n.running(), "--address", n.Pipe()}
	if config != "" {
		args = append(args, "--config", n.Path(config))
	}
	return args
}

// Name returns the node's name.
func (n *Node) Name() string { return n.options.Name }

// Path returns the Windows path of a file in the node's directory.
func (n *Node) Path(elements ...string) string {
	return strings.Join(append([]string{n.dir}, elements...), `\`)
}

// Paths of a real node.
const (
	usualDir = `C:\Program Files\containerd`
	// UsualData is containerd's data directory.
	UsualData = `C:\ProgramData\containerd`
	// UsualState is the product's state directory.
	UsualState = `C:\ProgramData\directx-nri`
	usualPipe  = "containerd-containerd"
)

func (n *Node) state() string {
	if n.options.Usual {
		return UsualState
	}
	return n.Path("state")
}

// running returns containerd's state directory.
func (n *Node) running() string {
	if n.options.Usual {
		return UsualData + `\state`
	}
	return n.Path("run")
}

// StateDir returns the path of the state directory on this system.
func (n *Node) StateDir() string { return n.Linux(n.state()) }

// Command is [Wine.Command] with the node's state directory in the environment.
func (n *Node) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := n.Wine.Command(ctx, program, args...)
	if !n.options.Usual {
		cmd.Env = append(cmd.Env, "DIRECTX_NRI_STATE_DIR="+n.state())
	}
	if n.options.HCSAnswers {
		cmd.Env = append(cmd.Env, hcsAnswers)
	}
	return cmd
}

func (n *Node) pipeName() string {
	if n.options.Usual {
		return usualPipe
	}
	return "dxw-" + n.options.Name
}

// Pipe returns containerd's address.
func (n *Node) Pipe() string { return `\\.\pipe\` + n.pipeName() }

// File writes a file in the node's directory and returns its Windows path.
func (n *Node) File(t testing.TB, name, content string) string {
	t.Helper()
	n.replace(t, n.Path(name), []byte(content))
	return n.Path(name)
}

// read returns a file of the node's directory, nil if there is none.
func (n *Node) read(t testing.TB, name ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(n.Linux(n.Path(name...)))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return data
}

// ConfigFile returns the path of config.yaml on this system.
func (n *Node) ConfigFile() string { return n.Linux(n.Path("config.yaml")) }

// WriteSettings replaces config.yaml with the keys that the node needs and settings,
// and applies it.
func (n *Node) WriteSettings(t testing.TB, settings string) {
	t.Helper()
	if err := n.TrySettings(t, settings); err != nil {
		t.Fatal(err)
	}
}

// TrySettings is [Node.WriteSettings] for settings that may be invalid.
func (n *Node) TrySettings(t testing.TB, settings string) error {
	t.Helper()
	shim := plainExe
	if n.options.Containerd2 {
		shim = runhcsExe
	}
	if !n.options.Live {
		settings = fmt.Sprintf("inventory: '%s'\n", n.Path("inventory.yaml")) + settings
	}
	n.File(t, "config.yaml", fmt.Sprintf("apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\nshim:\n  runtime: '%s'\n  log: '%s'\n%s",
		n.Path(shim), n.Path("shim.log"), settings))
	return n.Apply(t)
}

// Apply compiles config.yaml into the state directory with 'dxctl.exe config apply'.
func (n *Node) Apply(t testing.TB) error {
	t.Helper()
	_, err := n.run(`product\`+dxctlExe, "config", "apply", "--config", n.Path("config.yaml"))
	return err
}

// Start starts containerd.exe and waits until it answers.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	if err := n.start(n.containerdArgs()); err != nil {
		t.Fatalf("%v\n%s", err, n.Log())
	}
}

func (n *Node) start(args []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
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
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	go func(ended chan struct{}) { // Ends with the process; Kill waits for it.
		defer cancel()
		defer close(ended)
		_ = cmd.Wait() // The status is in cmd.ProcessState.
	}(n.ended)
	// runhcs sends its events to the second pipe.
	if _, err := n.output(n.Command(ctx, n.Path(clientExe), "wake", n.Pipe(), n.Pipe()+".ttrpc")); err != nil {
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

// Log returns containerd's log of all its starts.
func (n *Node) Log() string {
	data, _ := os.ReadFile(n.log) // It is printed with another failure.
	return string(data)
}

// run runs a program of the node and returns its standard output. The error has its
// standard error.
func (n *Node) run(program string, args ...string) (string, error) {
	return n.runWithin(patience, nil, program, args...)
}

func (n *Node) runWithin(limit time.Duration, stdin []byte, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := n.Command(ctx, n.Path(program), args...)
	cmd.Stdin = bytes.NewReader(stdin)
	return n.output(cmd)
}

// Dxctl runs dxctl.exe and returns its exit status and output.
func (n *Node) Dxctl(t testing.TB, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return n.Finish(t, n.Command(ctx, n.Path("product", dxctlExe), args...))
}

// DxctlRuntime runs 'dxctl.exe runtime COMMAND' for the node's containerd.
func (n *Node) DxctlRuntime(t testing.TB, command string, flags ...string) (status int, stdout, stderr string) {
	t.Helper()
	args := []string{"runtime", command}
	switch containerd := []string{"--config", n.Path(n.containerdToml()), "--cri-socket", n.Pipe()}; command {
	case "install":
		args = append(args, "--to", n.Path())
	case "configure":
		args = append(append(args, containerd...), "--shim", n.Shim())
	case "unconfigure":
		args = append(args, containerd...)
	default:
		args = append(append(args, containerd...), "--timeout", patience.String())
	}
	return n.Dxctl(t, append(args, flags...)...)
}

// Shim returns the path of the shim on the node.
func (n *Node) Shim() string { return n.Path(directxExe) }

// ShimFile returns the shim's content, nil if there is none.
func (n *Node) ShimFile(t testing.TB) []byte { return n.read(t, directxExe) }

// Product returns a program of the product, as it is installed from.
func (n *Node) Product(t testing.TB, name string) []byte {
	t.Helper()
	return n.read(t, "product", name)
}

// CtrCommand returns a command of ctr.exe.
func (n *Node) CtrCommand(ctx context.Context, args ...string) *exec.Cmd {
	return n.Command(ctx, n.Path(ctrExe), append([]string{"--address", n.Pipe()}, args...)...)
}

// Ctr runs ctr.exe. The error has what it printed.
func (n *Node) Ctr(t testing.TB, args ...string) (string, error) {
	t.Helper()
	return n.ctr(patience, args...)
}

func (n *Node) ctr(limit time.Duration, args ...string) (string, error) {
	for deadline := time.Now().Add(limit); ; {
		out, err := n.runWithin(limit, nil, ctrExe, append([]string{"--address", n.Pipe()}, args...)...)
		// ctr 2 checks that the pipe exists, which fails while another process connects. It
		// has sent no request yet.
		if err == nil || !strings.Contains(err.Error(), "cannot access socket") || time.Now().After(deadline) {
			return out, err
		}
	}
}

// request is the input of client.exe.
type request struct {
	Address    string      `json:"address"`
	Namespace  string      `json:"namespace"`
	Containers []Container `json:"containers"`
}

// Container is a container of the containerd client.
type Container struct {
	ID     string            `json:"id"`
	Spec   string            `json:"spec"` // Windows path
	Labels map[string]string `json:"labels,omitempty"`
	// Runtime is the runtime's name, and Path its program if the name does not select it.
	Runtime string `json:"runtime"`
	Path    string `json:"runtimePath,omitempty"`
	// Options sends the runtime options of runhcs, as the CRI plugin does.
	Options bool `json:"runhcsOptions,omitempty"`
	// Raw uses the spec as it is, even if it is not JSON.
	Raw bool `json:"raw,omitempty"`
}

// Answer is the result of a container's start.
type Answer struct {
	ID    string `json:"id"`
	PID   uint32 `json:"pid"`
	Error string `json:"error"`
}

// Client starts containers with the containerd client, concurrently, and leaves them
// running.
func (n *Node) Client(t testing.TB, namespace string, containers ...Container) []Answer {
	t.Helper()
	var ids []string
	for _, c := range containers {
		ids = append(ids, c.ID)
	}
	t.Cleanup(func() { n.remove(t, namespace, ids...) })
	input := marshal(t, request{Address: n.Pipe(), Namespace: namespace, Containers: containers})
	out, err := n.runWithin(limitFor(len(containers)), input, clientExe, "run")
	if err != nil {
		t.Fatalf("start containers with the client: %v", err)
	}
	answers := decodeLines[Answer](t, out)
	if len(answers) != len(containers) {
		t.Fatalf("the client answered for %d containers, want %d", len(answers), len(containers))
	}
	return answers
}

// decodeLines decodes lines of JSON.
func decodeLines[T any](t testing.TB, text string) (values []T) {
	t.Helper()
	for line := range strings.Lines(text) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("decode %q: %v", line, err)
		}
		values = append(values, v)
	}
	return values
}

// Run starts a container with ctr and a spec, and leaves it running.
func (n *Node) Run(t testing.TB, runtime, id string, spec []byte) error {
	t.Helper()
	return n.ctrRun(t, id, n.RunArgs(t, runtime, id, spec)...)
}

// ctrRun runs 'ctr run' and removes the container when the test ends.
func (n *Node) ctrRun(t testing.TB, id string, args ...string) error {
	t.Helper()
	t.Cleanup(func() { n.remove(t, defaultNamespace, id) })
	_, err := n.Ctr(t, args...)
	return err
}

// RunArgs returns the arguments of ctr for [Node.Run].
func (n *Node) RunArgs(t testing.TB, runtime, id string, spec []byte) []string {
	t.Helper()
	return []string{"run", "--detach", "--null-io", "--runtime", runtime, "--config", n.SpecFile(t, id, spec), id}
}

// MustRun is [Node.Run] for a container that has to start.
func (n *Node) MustRun(t testing.TB, runtime, id string, spec []byte) {
	t.Helper()
	if err := n.Run(t, runtime, id, spec); err != nil {
		t.Fatalf("start container %s: %v", id, err)
	}
}

// RunImage starts a container of the node's image with ctr and flags, and leaves it running.
func (n *Node) RunImage(t testing.TB, runtime, id string, flags ...string) error {
	t.Helper()
	return n.ctrRun(t, id, slices.Concat([]string{"run", "--detach", "--null-io", "--runtime", runtime}, flags, []string{imageName, id})...)
}

// SpecFile writes a spec and returns its Windows path.
func (n *Node) SpecFile(t testing.TB, id string, spec []byte) string {
	t.Helper()
	return n.File(t, "spec-"+id+".json", string(spec))
}

// remove removes what is left of containers, if anything.
func (n *Node) remove(t testing.TB, namespace string, ids ...string) {
	for _, command := range [][]string{{"tasks", "rm", "--force"}, {"containers", "rm"}} {
		_, err := n.ctr(limitFor(len(ids)), slices.Concat([]string{"--namespace", namespace}, command, ids)...)
		if err != nil && strings.Contains(err.Error(), tookTooLong) {
			t.Errorf("remove %s: %v", strings.Join(ids, " "), err)
		}
	}
}

// Delete kills and removes a running container.
func (n *Node) Delete(t testing.TB, id string) {
	t.Helper()
	n.DeleteIn(t, defaultNamespace, id)
}

// DeleteIn is [Node.Delete] in a namespace of containerd.
func (n *Node) DeleteIn(t testing.TB, namespace, id string) {
	t.Helper()
	for _, args := range [][]string{{"tasks", "kill", "--signal", "9", id}, {"tasks", "rm", "--force", id}, {"containers", "rm", id}} {
		if _, err := n.Ctr(t, append([]string{"--namespace", namespace}, args...)...); err != nil && !strings.Contains(err.Error(), "exit code 137") {
			t.Errorf("ctr %s: %v", strings.Join(args, " "), err)
		}
	}
}

// Tasks returns the state of each task by ID.
func (n *Node) Tasks(t testing.TB) map[string]string {
	t.Helper()
	return n.TasksIn(t, defaultNamespace)
}

// TasksIn is [Node.Tasks] in a namespace of containerd.
func (n *Node) TasksIn(t testing.TB, namespace string) map[string]string {
	t.Helper()
	out, err := n.Ctr(t, "--namespace", namespace, "tasks", "ls")
	if err != nil {
		t.Fatalf("list the tasks: %v", err)
	}
	tasks := map[string]string{}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] != "TASK" {
			tasks[fields[0]] = fields[2]
		}
	}
	return tasks
}

// Left returns an error if a container has left a process, its bundle or its compute
// system.
func (n *Node) Left(id string) error {
	if left := n.Processes(id); len(left) > 0 {
		return fmt.Errorf("%d processes: %+v", len(left), left)
	}
	if bundles, _ := filepath.Glob(n.Linux(n.running() + `\io.containerd.runtime.v2.task\*\` + id)); len(bundles) > 0 {
		return fmt.Errorf("its bundle exists")
	}
	if _, err := os.Stat(n.Linux(`C:\hcs\` + id)); err == nil {
		return fmt.Errorf("its compute system exists")
	}
	return nil
}

// Process is a process of the prefix.
type Process struct {
	PID     int
	Command string
}

// Processes returns the shim processes of a container: those with the name of a runtime
// shim and the ID as an argument.
func (n *Node) Processes(id string) []Process {
	var processes []Process
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // The pattern is well formed.
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !n.has(filepath.Dir(file)) {
			continue // It has ended, or belongs to another prefix.
		}
		args := strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
		if !strings.Contains(args[0], "containerd-shim-") || !slices.Contains(args, id) {
			continue
		}
		p := Process{Command: strings.Join(args, " ")}
		if _, err := fmt.Sscanf(file, "/proc/%d/cmdline", &p.PID); err == nil {
			processes = append(processes, p)
		}
	}
	return processes
}

// KillProcess kills a process, as TerminateProcess does.
func KillProcess(t testing.TB, p Process) {
	t.Helper()
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Errorf("kill %s: %v", p.Command, err)
	}
}

// ShimCall is a call of the real shim, as recorded by the launcher.
type ShimCall struct {
	ID    string   `json:"id"`
	Args  []string `json:"args"`
	Stdin []byte   `json:"stdin"`
}

// ShimCalls returns the calls of the real shim for a container, in order.
func (n *Node) ShimCalls(t testing.TB, id string) []ShimCall {
	t.Helper()
	calls := decodeLines[ShimCall](t, string(n.read(t, "launcher", "calls.log")))
	return slices.DeleteFunc(calls, func(c ShimCall) bool { return c.ID != id })
}

// Config returns the config.json that the real shim was started with.
func (n *Node) Config(t testing.TB, id string) string {
	t.Helper()
	data := n.read(t, "launcher", "config-"+id+".json")
	if data == nil {
		t.Fatalf("the real shim was not started for %s", id)
	}
	return string(data)
}

// Hang makes the launcher wait when container id is started, "before" it runs runhcs or
// "after", until release is called or the test ends.
func (n *Node) Hang(t testing.TB, when, id string) (release func()) {
	t.Helper()
	order := n.Linux(n.Path("launcher", "hang-"+when+"-"+id))
	if err := errors.Join(os.MkdirAll(filepath.Dir(order), 0o700), os.WriteFile(order, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	release = func() { _ = os.Remove(order) }
	t.Cleanup(release)
	return release
}

// AwaitHang waits until the launcher waits with container id.
func (n *Node) AwaitHang(t testing.TB, id string) {
	t.Helper()
	Eventually(t, "the start of "+id+" waits", func() error {
		_, err := os.Stat(n.Linux(n.Path("launcher", "hanging-"+id)))
		return err
	})
}

// Record writes an allocation record and returns its token.
func (n *Node) Record(t testing.TB, resource string, replicas ...allocation.Replica) allocation.Token {
	t.Helper()
	token, err := n.Recorder.Record(t.Context(), resource, replicas, false)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// RecordFile returns the path of the record of token on this system.
func (n *Node) RecordFile(token allocation.Token) string {
	return filepath.Join(paths.Allocations(n.StateDir()), string(token.ID())+".json")
}

// Eventually waits until check returns nil.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	suite.Eventually(t, patience, what, check)
}
