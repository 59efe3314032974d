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
)

// Directx is this project's runtime by the name that ctr and nerdctl use.
const Directx = "io.containerd.directx.v1"

// Plain is runhcs alone, by a name that is as little known as ours: ctr sends
// runhcs' own options along when it knows the name. containerd 2.4 speaks
// another protocol to every shim whose file does not have runhcs' name, which
// runhcs itself does not know, so there it goes by that.
func (n *Node) Plain() string {
	if n.options.Containerd2 {
		return "io.containerd.runhcs.v1"
	}
	return "io.containerd.plain.v1"
}

// patience is how long one step may take. What hangs is ended by it or by the
// suite's own timeout; a step that is slow because the machine is busy is not:
// there one start of a program can take ten seconds, and fifty containers three
// minutes.
const patience = 10 * time.Minute

// Timeouts is the end of containerd's configuration file. Its own limits are two
// to five seconds, within which Windows does what Wine on a busy machine does
// not: a clean-up that is cut short leaves the bundle for good.
const Timeouts = `
[timeouts]
  "io.containerd.timeout.shim.cleanup" = "2m"
  "io.containerd.timeout.shim.load" = "2m"
  "io.containerd.timeout.shim.shutdown" = "2m"
  "io.containerd.timeout.task.state" = "2m"
`

// Options say what a node is made of, by default containerd 1.7.35 and the
// hcsshim that it names.
type Options struct {
	// Name is the node's folder on drive C:, and in its pipes' names.
	Name string
	// Containerd2 takes the newest containerd, NewHcsshim the newest runhcs.
	Containerd2, NewHcsshim bool
	// Inventory describes the node's GPUs.
	Inventory *Inventory
	// Live has our shim find them by itself: the inventory is plugged as hardware,
	// in place of what the prefix had, and no inventory file is written.
	Live bool
	// Bare leaves our shim out, for dxctl.exe to install.
	Bare bool
	// HCSAnswers has what containerd starts, and HostProcess, be told what HCS is. It is not for the
	// newest runhcs, which would take more for granted.
	HCSAnswers bool
	// Usual has everything be where a Windows node has it, so that programs of ours
	// need no flags: containerd in "C:\Program Files\containerd", its folders, its
	// pipe, and our own folder. Our configuration is not written, and no record. It
	// takes a prefix of its own, and a Config that names no other folders.
	Usual bool
	// Settings are YAML that our configuration file has beside what the node needs,
	// by default the usual assignment of single devices: Wine says that it is a
	// Windows without.
	Settings string
	// Config is containerd's configuration file, "" for none, in place of the
	// bed's own, which has containerd wait longer than usual. Its usual pipe
	// becomes the node's, and what it says of folders is overridden by flags.
	Config *string
}

// Node is one containerd.exe with its folder.
type Node struct {
	*Wine
	// Recorder writes allocation records where the shim looks for them. A node that
	// is Usual has none yet.
	Recorder *allocation.Recorder

	options Options
	dir     string // Windows path
	log     string

	mu     sync.Mutex // held while containerd is started or killed
	daemon *exec.Cmd
	ended  chan struct{} // closed when daemon ended and was waited for
}

// StartNode makes a node and starts it. It ends with the test.
func StartNode(t testing.TB, w *Wine, options Options) *Node {
	t.Helper()
	n := &Node{Wine: w, options: options, dir: `C:\` + options.Name}
	if options.Usual {
		n.dir = usualDir
	}
	n.log = filepath.Join(w.dir, options.Name+".log")
	n.install(t)
	if options.Live {
		w.Plug(t, options.Inventory.Hardware(t, w))
	} else {
		options.Inventory.place(t, w)
		n.write(t, "inventory.yaml", options.Inventory.yaml())
	}
	if !options.Usual {
		n.WriteSettings(t, cmp.Or(options.Settings, usualSettings))
		n.OpenRecorder(t)
	}
	n.Start(t)
	t.Cleanup(func() {
		n.Kill()
		if t.Failed() {
			t.Logf("---- containerd's log\n%s", n.Log())
			if data, err := os.ReadFile(n.Linux(n.Path("shim.log"))); err == nil {
				t.Logf("---- the shim's log\n%s", data)
			}
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

// install puts the node's programs into its folder.
func (n *Node) install(t testing.TB) {
	t.Helper()
	containerd, hcsshim := windowsParts, windowsParts
	if n.options.Containerd2 {
		containerd = containerd2
	}
	if n.options.NewHcsshim {
		hcsshim = newHcsshim
	}
	for _, folder := range []string{"real", "product"} {
		if err := os.MkdirAll(n.Linux(n.Path(folder)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	launcher := filepath.Join(n.built, "launcher.exe")
	for name, from := range map[string]string{
		containerdExe: filepath.Join(n.parts.folder(containerd), containerdExe),
		ctrExe:        filepath.Join(n.parts.folder(containerd), ctrExe),
		clientExe:     filepath.Join(n.parts.folder(windowsParts), clientExe),
		runhcsExe:     launcher,
		plainExe:      launcher,
		directxExe:    filepath.Join(n.parts.products, directxExe),

		`product\` + dxctlExe:   filepath.Join(n.parts.products, dxctlExe),
		`product\` + directxExe: filepath.Join(n.parts.products, directxExe),

		`real\` + runhcsExe: filepath.Join(n.parts.folder(hcsshim), runhcsExe),
	} {
		if n.options.Bare && name == directxExe {
			continue
		}
		if err := copyFile(from, n.Linux(n.Path(name))); err != nil {
			t.Fatalf("put %s on the node: %v", name, err)
		}
	}
	switch config := n.options.Config; {
	case config == nil:
		n.write(t, n.containerdToml(), "version = 2\n"+Timeouts)
	case *config != "":
		// Flags alone do not move the pipe of ttrpc.
		n.write(t, n.containerdToml(), strings.ReplaceAll(*config, usualPipe, n.pipeName()))
	}
}

// containerdToml is containerd's configuration file. By its usual name a node
// that is started without any would read it too.
func (n *Node) containerdToml() string {
	if n.options.Usual {
		return "config.toml"
	}
	return "containerd.toml"
}

// ContainerdConfig returns containerd's configuration file, nil when there is
// none.
func (n *Node) ContainerdConfig(t testing.TB) []byte { return n.read(t, n.containerdToml()) }

// containerdArgs are the arguments that containerd.exe is started with. A file
// that is named must exist; the one at the default place need not.
func (n *Node) containerdArgs() []string {
	if n.options.Usual {
		return nil
	}
	if _, err := os.Stat(n.Linux(n.Path(n.containerdToml()))); err == nil {
		return n.containerdArgsWith(n.containerdToml())
	}
	return n.containerdArgsWith("")
}

// containerdArgsWith are the arguments for a configuration file of that name.
func (n *Node) containerdArgsWith(config string) []string {
	args := []string{"--root", n.Path("root"), "--state", n.running(), "--address", n.pipe()}
	if config != "" {
		args = append(args, "--config", n.Path(config))
	}
	return args
}

// Path returns the Windows path of a file in the node's folder.
func (n *Node) Path(elements ...string) string {
	return strings.Join(append([]string{n.dir}, elements...), `\`)
}

// Where a Windows node has things.
const (
	usualDir = `C:\Program Files\containerd`
	// UsualData is the folder of containerd's own data.
	UsualData = `C:\ProgramData\containerd`
	// UsualState is our folder.
	UsualState = `C:\ProgramData\directx-nri`
	usualPipe  = "containerd-containerd"
)

func (n *Node) state() string {
	if n.options.Usual {
		return UsualState
	}
	return n.Path("state")
}

// running is containerd's folder of what runs.
func (n *Node) running() string {
	if n.options.Usual {
		return UsualData + `\state`
	}
	return n.Path("run")
}

// Command is [Wine.Command] with the node's state directory in the environment.
func (n *Node) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := n.Wine.Command(ctx, program, args...)
	if !n.options.Usual {
		cmd.Env = append(cmd.Env, "DIRECTX_NRI_STATE_DIR="+n.state())
	}
	return cmd
}

// StateDir is our state folder's place on this system.
func (n *Node) StateDir() string { return n.Linux(n.state()) }

// pipePrefix begins the names of the nodes' pipes.
const pipePrefix = "dxw-"

func (n *Node) pipeName() string {
	if n.options.Usual {
		return usualPipe
	}
	return pipePrefix + n.options.Name
}

func (n *Node) pipe() string { return `\\.\pipe\` + n.pipeName() }

func (n *Node) write(t testing.TB, name, text string) {
	t.Helper()
	// Written beside and renamed, for a reader may be at it.
	path := n.Linux(n.Path(name))
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

const usualSettings = "assignmentMode: location-path\n"

// WriteSettings replaces config.yaml by the keys that the node needs and settings,
// YAML with other keys, and applies it.
func (n *Node) WriteSettings(t testing.TB, settings string) {
	t.Helper()
	if err := n.TrySettings(t, settings); err != nil {
		t.Fatal(err)
	}
}

// TrySettings is [Node.WriteSettings] of settings that may be invalid.
func (n *Node) TrySettings(t testing.TB, settings string) error {
	t.Helper()
	// Our shim selects by the name of the real one what that reads.
	shim := plainExe
	if n.options.Containerd2 {
		shim = runhcsExe
	}
	inventory := ""
	if !n.options.Live {
		inventory = fmt.Sprintf("inventory: '%s'\n", n.Path("inventory.yaml"))
	}
	n.write(t, "config.yaml", fmt.Sprintf(`apiVersion: directx.microsoft.com/v1alpha1
kind: Configuration
%sshim:
  runtime: '%s'
  log: '%s'
%s`, inventory, n.Path(shim), n.Path("shim.log"), settings))
	return n.Apply(t)
}

// Apply compiles config.yaml into the state directory with 'dxctl.exe config apply'.
func (n *Node) Apply(t testing.TB) error {
	t.Helper()
	_, err := n.run(t, nil, `product\`+dxctlExe, "config", "apply", "--config", n.Path("config.yaml"))
	return err
}

// ConfigFile is our configuration file's place on this system.
func (n *Node) ConfigFile() string { return n.Linux(n.Path("config.yaml")) }

// Start starts containerd.exe and waits until it answers.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	if err := n.start(n.containerdArgs()); err != nil {
		t.Fatalf("%v\n%s", err, n.Log())
	}
}

// start starts containerd.exe with arguments and waits until it answers or has
// ended.
func (n *Node) start(args []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := n.Command(context.Background(), n.Path(containerdExe), args...)
	if n.options.HCSAnswers {
		cmd.Env = append(cmd.Env, hcsAnswers)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start containerd.exe: %w", err)
	}
	n.daemon, n.ended = cmd, make(chan struct{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	go func(ended chan struct{}) { // Ends with the process; kill waits for it.
		defer cancel()
		defer close(ended)
		_ = cmd.Wait() // Killed, or seen by those who need it.
	}(n.ended)
	// runhcs sends its events to the second pipe.
	if _, err := n.output(n.Command(ctx, n.Path(clientExe), "wake", n.pipe(), n.pipe()+".ttrpc")); err != nil {
		select {
		case <-n.ended:
			return fmt.Errorf("containerd.exe has ended: %s", cmd.ProcessState)
		default:
			return fmt.Errorf("containerd.exe does not answer: %w", err)
		}
	}
	return nil
}

// Kill ends containerd.exe at once. Its shims stay.
func (n *Node) Kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.daemon.Process.Kill() // Fails when it has ended.
	<-n.ended
}

// Log returns what containerd logged, over all of its starts.
func (n *Node) Log() string {
	data, _ := os.ReadFile(n.log) // Shown with a failure that has been told.
	return string(data)
}

// run runs a program of the node and returns what it printed to standard
// output. Its error has the rest.
func (n *Node) run(t testing.TB, stdin []byte, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := n.Command(ctx, n.Path(program), args...)
	cmd.Stdin = bytes.NewReader(stdin)
	return n.output(cmd)
}

// CtrCommand returns ctr.exe with arguments, ready to be started.
func (n *Node) CtrCommand(ctx context.Context, args ...string) *exec.Cmd {
	return n.Command(ctx, n.Path(ctrExe), append([]string{"--address", n.pipe()}, args...)...)
}

// Ctr runs ctr.exe. Its error is what ctr printed.
func (n *Node) Ctr(t testing.TB, args ...string) (string, error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for silent := 0; ; {
		out, err := n.run(t, nil, ctrExe, append([]string{"--address", n.pipe()}, args...)...)
		switch {
		case err == nil || time.Now().After(deadline):
			return out, err
		case strings.Contains(err.Error(), "cannot access socket"):
			// ctr 2 looks whether the pipe is there before it connects, and gives up
			// when somebody else is just doing so. It has asked for nothing by then.
		case strings.HasSuffix(err.Error(), "exit status 1: ") && silent < 3:
			// ctr says why it fails, so that this one was ended by Wine: seen once, at the
			// start of a suite, when many programs start at the same time.
			silent++
		default:
			return out, err
		}
	}
}

// request is what client.exe is asked.
type request struct {
	Address    string      `json:"address"`
	Namespace  string      `json:"namespace"`
	Containers []Container `json:"containers"`
}

// Container is a container that the containerd client makes.
type Container struct {
	ID     string            `json:"id"`
	Spec   string            `json:"spec"` // Windows path
	Labels map[string]string `json:"labels,omitempty"`
	// Runtime is the runtime's name; Path its program, when it is another than
	// the name leads to.
	Runtime string `json:"runtime"`
	Path    string `json:"runtimePath,omitempty"`
	// Options sends runhcs' options along, as the CRI plugin does.
	Options bool `json:"runhcsOptions,omitempty"`
	// Raw puts the spec into the container as it is, JSON or not.
	Raw bool `json:"raw,omitempty"`
}

// Answer is what became of it.
type Answer struct {
	ID    string `json:"id"`
	PID   uint32 `json:"pid"`
	Error string `json:"error"`
}

// Client makes containers with the containerd client, all at once, and leaves
// them running.
func (n *Node) Client(t testing.TB, namespace string, containers ...Container) []Answer {
	t.Helper()
	var ids []string
	for _, c := range containers {
		ids = append(ids, c.ID)
	}
	t.Cleanup(func() { n.remove(t, namespace, ids...) })
	input, err := json.Marshal(request{Address: n.pipe(), Namespace: namespace, Containers: containers})
	if err != nil {
		t.Fatal(err)
	}
	out, err := n.run(t, input, clientExe, "run")
	if err != nil {
		t.Fatalf("start containers with the client: %v", err)
	}
	var answers []Answer
	for line := range strings.Lines(out) {
		var a Answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("the client said %q: %v", line, err)
		}
		answers = append(answers, a)
	}
	if len(answers) != len(containers) {
		t.Fatalf("the client answered for %d containers, want %d", len(answers), len(containers))
	}
	return answers
}

// Run starts a container with ctr and a spec file, and leaves it running.
func (n *Node) Run(t testing.TB, runtime, id string, spec []byte) error {
	t.Helper()
	t.Cleanup(func() { n.remove(t, defaultNamespace, id) })
	_, err := n.Ctr(t, "run", "--detach", "--null-io", "--runtime", runtime, "--config", n.SpecFile(t, id, spec), id)
	return err
}

// MustRun is Run of a container that has to start.
func (n *Node) MustRun(t testing.TB, runtime, id string, spec []byte) {
	t.Helper()
	if err := n.Run(t, runtime, id, spec); err != nil {
		t.Fatalf("start container %s: %v", id, err)
	}
}

const defaultNamespace = "default"

// RunImage starts a container with ctr, flags and the node's image, and leaves
// it running.
func (n *Node) RunImage(t testing.TB, runtime, id string, flags ...string) error {
	t.Helper()
	t.Cleanup(func() { n.remove(t, defaultNamespace, id) })
	args := slices.Concat([]string{"run", "--detach", "--null-io", "--runtime", runtime}, flags, []string{imageName, id})
	_, err := n.Ctr(t, args...)
	return err
}

// SpecFile writes a spec for ctr or the client, and returns its path.
func (n *Node) SpecFile(t testing.TB, id string, spec []byte) string {
	t.Helper()
	name := "spec-" + id + ".json"
	n.write(t, name, string(spec))
	return n.Path(name)
}

// remove ends and removes what is left of containers.
func (n *Node) remove(t testing.TB, namespace string, ids ...string) {
	// They may never have come to be, or be removed already.
	_, _ = n.Ctr(t, append([]string{"--namespace", namespace, "tasks", "rm", "--force"}, ids...)...)
	_, _ = n.Ctr(t, append([]string{"--namespace", namespace, "containers", "rm"}, ids...)...)
}

// Delete ends and removes a container that runs, with its task.
func (n *Node) Delete(t testing.TB, id string) {
	t.Helper()
	n.DeleteIn(t, defaultNamespace, id)
}

// DeleteIn is Delete in a namespace of containerd.
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

// TasksIn is Tasks in a namespace of containerd.
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

// Bundle tells whether containerd still has the bundle of a container.
func (n *Node) Bundle(id string) bool {
	found, _ := filepath.Glob(n.Linux(n.running() + `\io.containerd.runtime.v2.task\*\` + id)) // The pattern is well formed.
	return len(found) > 0
}

// Process is one process of the prefix.
type Process struct {
	PID     int
	Command string
}

// Processes returns the shim processes of a container: those that have a
// runtime shim's name and the ID as an argument.
func (n *Node) Processes(id string) []Process {
	var processes []Process
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // The pattern is well formed.
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // It ended meanwhile.
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

// KillProcess ends a process at once, as TerminateProcess does.
func KillProcess(t testing.TB, p Process) {
	t.Helper()
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Errorf("kill %s: %v", p.Command, err)
	}
}

// ShimCall is a call of the real shim, as the launcher noted it.
type ShimCall struct {
	ID    string   `json:"id"`
	Args  []string `json:"args"`
	Stdin []byte   `json:"stdin"`
	Dir   string   `json:"dir"`
	Env   []string `json:"env"`
}

// ShimCalls returns the calls of the real shim for a container, in order.
func (n *Node) ShimCalls(t testing.TB, id string) []ShimCall {
	t.Helper()
	data, err := os.ReadFile(n.Linux(n.Path("launcher", "calls.log")))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var calls []ShimCall
	for line := range strings.Lines(string(data)) {
		var c ShimCall
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("the launcher noted %q: %v", line, err)
		}
		if c.ID == id {
			calls = append(calls, c)
		}
	}
	return calls
}

// Config returns the config.json that the real shim was started on.
func (n *Node) Config(t testing.TB, id string) string {
	t.Helper()
	data, err := os.ReadFile(n.Linux(n.Path("launcher", "config-"+id+".json")))
	if err != nil {
		t.Fatalf("the real shim was never started on %s: %v", id, err)
	}
	return string(data)
}

// Hang makes the launcher stand still when container id is started: before it
// runs runhcs or after. The test's end lets it go.
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

// Hangs tells whether the launcher stands still with container id.
func (n *Node) Hangs(id string) bool {
	_, err := os.Stat(n.Linux(n.Path("launcher", "hanging-"+id)))
	return err == nil
}

// Record writes an allocation record and returns its token.
func (n *Node) Record(t testing.TB, resource string, replicas ...allocation.Replica) allocation.Token {
	t.Helper()
	token, err := n.Recorder.Record(t.Context(), resource, replicas)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// RecordFile is where the record of token is on this system.
func (n *Node) RecordFile(token allocation.Token) string {
	return filepath.Join(paths.Allocations(n.StateDir()), string(token.ID())+".json")
}

// Eventually tries check until it returns nil, and fails the test when it never
// does.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
		time.Sleep(poll)
	}
}

// poll is how often it is looked whether something has happened.
const poll = 50 * time.Millisecond

// Name is the node's name.
func (n *Node) Name() string { return n.options.Name }
