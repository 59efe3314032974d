//go:build unix

package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd/containerdtest"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// killVariable makes this program a dxctl that is killed at the step with this number.
const killVariable = "DIRECTX_NRI_TEST_KILL_AT"

// listenerVariable makes this program one of that name, which listens on a socket until its
// input ends.
const listenerVariable = "DIRECTX_NRI_TEST_LISTENER"

func TestMain(m *testing.M) {
	if at, err := strconv.Atoi(os.Getenv(killVariable)); err == nil {
		os.Exit(runKilled(at, os.Args[1:])) //nolint:forbidigo // This process is dxctl.
	}
	if name := os.Getenv(listenerVariable); name != "" {
		err := os.WriteFile("/proc/self/comm", []byte(name), 0)
		if _, listenErr := net.Listen("unix", os.Args[1]); errors.Join(err, listenErr) == nil {
			fmt.Println("listens")
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	m.Run()
}

func runKilled(at int, args []string) int {
	t := Restarter{step: func(name string) {
		fmt.Println(name)
		if at--; at == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // Until the signal arrives.
		}
	}}
	command := newCommand(args[0], t)
	command.SetArgs(args[1:])
	if command.Execute() != nil {
		return 1
	}
	return 0
}

// killed runs a command that is killed at a step, and returns its steps. It reports
// whether the command had that many.
func killed(t *testing.T, b *containerdtest.Node, at int, args ...string) (steps []string, was bool) {
	t.Helper()
	command := exec.Command(os.Args[0], append([]string{args[0]}, flags(b, args)...)...)
	command.Env = append(os.Environ(), killVariable+"="+strconv.Itoa(at))
	out, err := command.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return strings.Fields(string(out)), exit != nil && !exit.Exited()
}

// TestKilledAtEachStep kills dxctl at each step of a change. The next run finishes it.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		refuses bool // containerd does not start with the change
		command string
		want    string // the configuration in the end, if not configured
	}{
		"configure":                 {command: "configure"},
		"configure, and put back":   {command: "configure", refuses: true, want: containerdtest.Config},
		"unconfigure":               {command: "unconfigure", want: containerdtest.Config},
		"unconfigure, and put back": {command: "unconfigure", refuses: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at, was := 1, true; was; at++ {
				b := containerdtest.New(t, containerdtest.Config)
				restart := []string{"--restart", "--restart-command", "touch " + filepath.Join(b.Root, "restarted")}
				if test.command == "unconfigure" {
					must(t, b, append([]string{"configure"}, restart...)...)
				}
				configured := b.Read(t)
				if test.refuses {
					// containerd starts with the present file only.
					refuse := fmt.Sprintf("cmp -s %s %s && touch %s", b.Config, filepath.Join(b.Root, "accepted"), filepath.Join(b.Root, "restarted"))
					b.Write(t, filepath.Join(b.Root, "accepted"), configured)
					restart[2] = refuse
				}
				args := append([]string{test.command}, restart...)
				var steps []string
				if steps, was = killed(t, b, at, args...); !was {
					t.Logf("steps %q", steps)
					break
				}
				when := fmt.Sprintf("killed at %d, %s", at, steps[len(steps)-1])
				_, stderr, err := run(t, b, args...)
				if (err != nil) != test.refuses {
					t.Errorf("%s: the next run: %v\n%s", when, err, stderr)
				}
				got := b.Read(t)
				if isOurs := strings.Contains(got, b.Shim()); isOurs != (test.want == "") || test.want != "" && got != test.want {
					t.Errorf("%s: the configuration is\n%s", when, got)
				}
				if r, err := readRecord(b.State); err != nil || r.Restart != nil {
					t.Errorf("%s: the restart is left, %v", when, err)
				}
				// containerd runs with that file.
				checkLoaded(t, b, when, test.want == "")
				if durable.Exists(filepath.Join(b.Root, "restarted")) {
					t.Errorf("%s: containerd has not read its configuration", when)
				}
			}
		})
	}
}

// TestPendingRestart: the states in which a record can be found.
func TestPendingRestart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		record  string
		restart bool
		want    string // an error, or a message
	}{
		"replaced by others":                 {`{"written": "x", BEFORE}`, false, "configured"},
		"replaced by others after a failure": {`{"written": "x", "failed": "why", BEFORE}`, true, "restarted containerd"},
		"no --restart":                       {`{"written": "MINE", "failed": "why", BEFORE}`, false, "add --restart"},
		"dry run":                            {`{"written": "MINE", "failed": "why", BEFORE}`, false, "add --restart"},
		"dry run, replaced by others":        {`{"written": "x", BEFORE}`, false, "<nil>"},
		"dry run with --restart":             {`{"written": "MINE", "failed": "why", BEFORE}`, true, "add --restart"},
		// The socket is this test's, and not containerd's.
		"cannot be restarted":    {`{"written": "MINE", "failed": "why", BEFORE}`, true, "did not finish its restart of containerd: restart by a signal"},
		"damaged":                {`{`, true, recordName},
		"a failure is completed": {`{"attempt": "a", "written": "MINE", "failed": "why", BEFORE}`, true, "why; "},
		"no file was changed":    {`{}`, true, "restarted containerd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := containerdtest.New(t, containerdtest.Config)
			testutil.WriteFile(t, recordPath(b.State), strings.NewReplacer("BEFORE", `"before": {"file": {"path": "`+b.Config+`"}}`, "MINE", hash([]byte(containerdtest.Config))).Replace(`{"format": 1, "restart": `+test.record+`}`), 0o600)
			args := []string{"configure"}
			switch {
			case strings.HasPrefix(name, "dry run"):
				args = []string{"unconfigure", "--dry-run"}
				if test.restart {
					args = append(args, b.Restart()...)
				}
				defer func() {
					if r, err := readRecord(b.State); err != nil || r.Restart == nil || durable.Exists(filepath.Join(b.Root, "restarted")) {
						t.Errorf("the node was changed: %v", err)
					}
				}()
			case strings.Contains(name, "cannot"):
				args = append(args, "--restart", "--restart-mode", "signal", "--cri-socket", b.Socket)
			case test.restart:
				args = append(args, b.Restart()...)
			}
			_, stderr, err := run(t, b, args...)
			if !strings.Contains(fmt.Sprint(stderr, err), test.want) {
				t.Errorf("%v: %s, want %q", err, stderr, test.want)
			}
		})
	}
}

// TestTask runs what the scheduled task runs.
func TestTask(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	task := Restarter{
		Instance: Instance{OS: "windows", ConfigFile: b.Config, CRISocket: b.Socket}, StateDir: b.State, Restart: true, restartMode: restartByService,
		restartBy: "touch " + filepath.Join(b.Root, "restarted"), RestartLimit: time.Minute,
	}
	// A run that was ended with the container that it ran in, after it started the task.
	killed(t, b, 4, append([]string{"configure"}, b.Restart()...)...)
	if err := task.runTask(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkLoaded(t, b, "in the end", true)
	log, err := os.ReadFile(filepath.Join(b.State, taskLog))
	if err != nil || !strings.Contains(string(log), "restarted containerd") {
		t.Errorf("%v: the log is %s", err, log)
	}
	if _, stderr := must(t, b, append([]string{"configure"}, b.Restart()...)...); !strings.Contains(stderr, "is already configured") {
		t.Error(stderr)
	}
	if err := task.runTask(t.Context()); err != nil {
		t.Errorf("with nothing to do: %v", err)
	}
	// The next run waits for a task.
	if err := task.waitForTask(t.Context()); err != nil {
		t.Errorf("no task runs: %v", err)
	}
	lock := flock.New(filepath.Join(b.State, taskLock))
	if locked, err := lock.TryLock(); err != nil || !locked {
		t.Fatal(locked, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := task.waitForTask(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a task runs: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTaskForgetsEarlierFailure begins a task after the same attempt has failed: its result
// must not be that of the earlier one. There are tasks on Windows only.
func TestTaskForgetsEarlierFailure(t *testing.T) {
	t.Parallel()
	task := Restarter{Instance: Instance{OS: "windows"}, StateDir: filepath.Join(t.TempDir(), "state")}
	for _, id := range []string{"a", ""} {
		p := &pendingRestart{Attempt: id}
		earlier := func(r *record) { r.Failure = &failure{Attempt: cmp.Or(id, taskCommand)} }
		if err := errors.Join(task.save(p), updateRecord(task.StateDir, earlier)); err != nil {
			t.Fatal(err)
		}
		if err := task.restartByTask(t.Context(), io.Discard, p); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%q: %v", id, err)
		}
		if r, err := readRecord(task.StateDir); err != nil || r.Failure != nil {
			t.Errorf("%q: %v, %v", id, r.Failure, err)
		}
	}
}

// TestCanceledOnWindows leaves the second restart to the next run.
func TestCanceledOnWindows(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	// Killed when the configuration is written.
	killed(t, b, 4, append([]string{"configure"}, b.Restart()...)...)
	ctx, cancel := context.WithCancel(t.Context())
	restarts := 0
	windows := Restarter{
		Instance: Instance{OS: "windows", ConfigFile: b.Config, CRISocket: b.Socket}, StateDir: b.State, Restart: true, restartBy: "exit 1", RestartLimit: time.Minute,
		step: func(name string) {
			if name == "restart" {
				restarts++
				cancel()
			}
		},
	}
	if err := windows.FinishPending(ctx, io.Discard); err == nil || !strings.Contains(err.Error(), "run the command again") {
		t.Error(err)
	}
	if got := b.Read(t); got != containerdtest.Config || restarts != 1 {
		t.Errorf("%d restarts; the configuration is\n%s", restarts, got)
	}
	if _, _, err := run(t, b, append([]string{"configure"}, b.Restart()...)...); err == nil || !strings.Contains(err.Error(), "containerd runs with it") {
		t.Errorf("the next run: %v", err)
	}
	must(t, b, append([]string{"configure"}, b.Restart()...)...)
	checkLoaded(t, b, "in the end", true)
}

type writerFunc func(text string)

func (w writerFunc) Write(text []byte) (int, error) { w(string(text)); return len(text), nil }

// TestRestartSpread: there is a wait before the first restart only, and what others write to
// the file meanwhile is kept.
func TestRestartSpread(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	for _, first := range []bool{true, false} {
		waits := false
		command := newCommand("configure", Restarter{})
		command.SetErr(writerFunc(func(text string) {
			if strings.Contains(text, "--restart-spread") {
				waits = true
				b.Write(t, b.Config, containerdtest.Config+"oom_score = -999\n")
			}
		}))
		command.SetArgs(flags(b, append([]string{"configure", "--restart-spread", "10ms"}, b.Restart()...)))
		if err := command.ExecuteContext(t.Context()); err != nil || waits != first {
			t.Errorf("waits: %t, %v", waits, err)
		}
	}
	if got := b.Read(t); !strings.Contains(got, "oom_score = -999") || !strings.Contains(got, b.Shim()) {
		t.Errorf("the configuration is\n%s", got)
	}
}

// TestIsOutdated: containerd is restarted for our own change only, and only once.
func TestIsOutdated(t *testing.T) {
	t.Parallel()
	for _, program := range []string{programName, "systemd"} {
		b := containerdtest.New(t, containerdtest.Config)
		socket := b.Socket + "2"
		command := exec.Command(os.Args[0], socket)
		command.Env = append(os.Environ(), listenerVariable+"="+program)
		input, err := command.StdinPipe()
		output, outErr := command.StdoutPipe()
		if err := errors.Join(err, outErr, command.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = input.Close(), command.Wait() })
		if _, err := output.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		restarter := Restarter{Instance: Instance{CRISocket: socket}}
		for when, test := range map[string]struct {
			change *Change
			want   bool
		}{
			"not changed":                     {nil, false},
			"changed since it was started":    {&Change{At: time.Now()}, program == programName},
			"changed before it was started":   {&Change{At: time.Now().Add(-time.Hour)}, false},
			"the clock was set back since":    {&Change{At: time.Now().Add(time.Hour)}, false},
			"changed by a version without At": {&Change{}, false},
		} {
			if got := restarter.isOutdated(t.Context(), test.change); got != test.want {
				t.Errorf("%s, %s: %t", program, when, got)
			}
		}
	}
}

// TestConfigurationKeepsItsGroup: the copy has the group, too. Both can have credentials.
func TestConfigurationKeepsItsGroup(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	if os.Chown(b.Config, 0, 23456) != nil {
		return // Only root can.
	}
	if err := errors.Join(os.Chmod(b.Config, 0o640), os.Chown(b.Root, 0, 34567), os.Chmod(b.Root, 0o755|os.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	check := func(when string, paths ...string) {
		t.Helper()
		for _, path := range paths {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(when, err)
			}
			if stat, _ := info.Sys().(*syscall.Stat_t); stat.Gid != 23456 || info.Mode() != 0o640 {
				t.Errorf("%s: %s has group %d and mode %v", when, path, stat.Gid, info.Mode())
			}
		}
	}
	flags, _ := restarts(t, b)
	if _, _, err := run(t, b, append([]string{"configure"}, flags...)...); err == nil || b.Read(t) != containerdtest.Config {
		t.Errorf("the change was not undone: %v", err)
	}
	check("restored", b.Config)
	must(t, b, "configure")
	check("configured", b.Config, b.Config+backupSuffix)
	must(t, b, "unconfigure")
	check("unconfigured", b.Config)
}
