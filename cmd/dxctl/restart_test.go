//go:build unix

package main

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
	t := target{os: "linux", step: func(name string) {
		fmt.Println(name)
		if at--; at == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // Until the signal arrives.
		}
	}}
	command := (&configureOptions{target: t}).command("linux")
	if args[0] == "unconfigure" {
		command = (&unconfigureOptions{target: t}).command()
	}
	command.SetArgs(args[1:])
	if command.Execute() != nil {
		return 1
	}
	return 0
}

// killed runs a command that is killed at a step, and returns its steps. It reports
// whether the command had that many.
func (b *bed) killed(t *testing.T, at int, args ...string) (steps []string, was bool) {
	t.Helper()
	command := exec.Command(os.Args[0], b.arguments(args)...)
	command.Env = append(os.Environ(), killVariable+"="+strconv.Itoa(at))
	out, err := command.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return strings.Fields(strings.ReplaceAll(string(out), "restored ", "restored:")), exit != nil && !exit.Exited()
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
		"configure, and put back":   {command: "configure", refuses: true, want: mine},
		"unconfigure":               {command: "unconfigure", want: mine},
		"unconfigure, and put back": {command: "unconfigure", refuses: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at, was := 1, true; was; at++ {
				b := newBed(t, mine)
				restart := []string{"--restart", "--restart-command", "touch " + filepath.Join(b.root, "restarted")}
				if test.command == "unconfigure" {
					b.must(t, append([]string{"configure"}, restart...)...)
				}
				configured := b.read(t)
				if test.refuses {
					// containerd starts with what it has now only.
					refuse := fmt.Sprintf("cmp -s %s %s && touch %s", b.config, filepath.Join(b.root, "accepted"), filepath.Join(b.root, "restarted"))
					b.write(t, filepath.Join(b.root, "accepted"), configured)
					restart[2] = refuse
				}
				args := append([]string{test.command}, restart...)
				var steps []string
				if steps, was = b.killed(t, at, args...); !was {
					t.Logf("steps %q", steps)
					break
				}
				when := fmt.Sprintf("killed at %d, %s", at, steps[len(steps)-1])
				_, stderr, err := b.run(t, args...)
				if (err != nil) != test.refuses {
					t.Errorf("%s: the next run: %v\n%s", when, err, stderr)
				}
				got := b.read(t)
				if isOurs := strings.Contains(got, b.shim); isOurs != (test.want == "") || test.want != "" && got != test.want {
					t.Errorf("%s: the configuration is\n%s", when, got)
				}
				if exists(filepath.Join(b.state, pendingRestartName)) {
					t.Errorf("%s: the record is left", when)
				}
				// containerd runs with that file.
				if _, _, err := b.run(t, "status"); (err == nil) != (test.want == "") {
					t.Errorf("%s: status: %v", when, err)
				}
				if exists(filepath.Join(b.root, "restarted")) {
					t.Errorf("%s: containerd has not read its configuration", when)
				}
			}
		})
	}
}

// TestPendingRestart tries a record in the states that it can be found in.
func TestPendingRestart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		record  string
		restart bool
		want    string // an error, or a message
	}{
		"replaced by others":                 {`{"written": "x", "files": [{"path": "CONFIG"}]}`, false, "configured"},
		"replaced by others after a failure": {`{"written": "x", "failed": "why", "files": [{"path": "CONFIG"}]}`, true, "restarted containerd"},
		"no --restart":                       {`{"written": "MINE", "failed": "why", "files": [{"path": "CONFIG"}]}`, false, "add --restart"},
		// The socket is this test's, and not containerd's.
		"cannot be restarted":    {`{"written": "MINE", "failed": "why", "files": [{"path": "CONFIG"}]}`, true, "did not finish its restart of containerd: restart by a signal"},
		"damaged":                {`{`, true, "restart-pending.json"},
		"a failure is completed": {`{"attempt": "a", "written": "MINE", "failed": "why", "files": [{"path": "CONFIG"}]}`, true, "why; "},
		"no file was changed":    {`{}`, true, "restarted containerd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, mine)
			if err := os.Mkdir(b.state, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(b.state, pendingRestartName), []byte(strings.NewReplacer("CONFIG", b.config, "MINE", hash([]byte(mine))).Replace(test.record)), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{"configure"}
			if strings.Contains(name, "cannot") {
				args = append(args, "--restart", "--restart-mode", "signal", "--cri-socket", b.socket)
			} else if test.restart {
				args = append(args, b.restart()...)
			}
			_, stderr, err := b.run(t, args...)
			if !strings.Contains(fmt.Sprint(stderr, err), test.want) {
				t.Errorf("%v: %s, want %q", err, stderr, test.want)
			}
		})
	}
}

// TestTask runs what the scheduled task runs.
func TestTask(t *testing.T) {
	t.Parallel()
	b := newBed(t, mine)
	task := target{
		os: "windows", config: b.config, criSocket: b.socket, stateDir: b.state, restart: true, restartMode: restartByService,
		restartBy: "touch " + filepath.Join(b.root, "restarted"), restartLimit: time.Minute,
	}
	// A run that was ended with the container that it ran in, after it started the task.
	b.killed(t, 4, append([]string{"configure"}, b.restart()...)...)
	if err := task.runTask(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.must(t, "status")
	log, err := os.ReadFile(filepath.Join(b.state, taskLog))
	if err != nil || !strings.Contains(string(log), "restarted containerd") {
		t.Errorf("%v: the log is %s", err, log)
	}
	if _, stderr := b.must(t, append([]string{"configure"}, b.restart()...)...); !strings.Contains(stderr, "is already configured") {
		t.Error(stderr)
	}
	if err := task.runTask(t.Context()); err != nil {
		t.Errorf("with nothing to do: %v", err)
	}
	// The next run waits for a task.
	if err := task.waitForTask(t.Context()); err != nil {
		t.Errorf("no task runs: %v", err)
	}
	lock := flock.New(filepath.Join(b.state, taskLock))
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
	task := target{os: "windows", stateDir: filepath.Join(t.TempDir(), "state")}
	for _, id := range []string{"a", ""} {
		p := &pendingRestart{Attempt: id}
		earlier := failedAttempt{Attempt: cmp.Or(id, taskCommand)}
		if err := errors.Join(task.save(p), attemptRecord(task.stateDir).write(earlier)); err != nil {
			t.Fatal(err)
		}
		if err := task.restartByTask(t.Context(), io.Discard, p); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%q: %v", id, err)
		}
		if last := lastAttempt(task.stateDir); last != nil {
			t.Errorf("%q: %v", id, last)
		}
	}
}

// TestCanceledOnWindows leaves the second restart to the next run.
func TestCanceledOnWindows(t *testing.T) {
	t.Parallel()
	b := newBed(t, mine)
	// Killed when the configuration is written.
	b.killed(t, 4, append([]string{"configure"}, b.restart()...)...)
	ctx, cancel := context.WithCancel(t.Context())
	restarts := 0
	windows := target{
		os: "windows", config: b.config, criSocket: b.socket, stateDir: b.state, restart: true, restartBy: "exit 1", restartLimit: time.Minute,
		step: func(name string) {
			if name == "restart" {
				restarts++
				cancel()
			}
		},
	}
	if err := windows.finishPending(ctx, io.Discard); err == nil || !strings.Contains(err.Error(), "run the command again") {
		t.Error(err)
	}
	if got := b.read(t); got != mine || restarts != 1 {
		t.Errorf("%d restarts; the configuration is\n%s", restarts, got)
	}
	if _, _, err := b.run(t, append([]string{"configure"}, b.restart()...)...); err == nil || !strings.Contains(err.Error(), "containerd runs with it") {
		t.Errorf("the next run: %v", err)
	}
	b.must(t, append([]string{"configure"}, b.restart()...)...)
	b.must(t, "status")
}

// TestRestartOnReboot leaves containerd alone.
func TestRestartOnReboot(t *testing.T) {
	t.Parallel()
	b := newBed(t, mine)
	for _, command := range []string{"configure", "configure", "unconfigure"} { // Again before the reboot.
		if _, stderr := b.must(t, command, "--restart", "--restart-mode", "onReboot"); !strings.Contains(stderr, "in force after the node's next reboot") || strings.Contains(stderr, "restarted") {
			t.Errorf("%s: %s", command, stderr)
		}
	}
	if got := b.read(t); got != mine {
		t.Error(got)
	}
}

type writerFunc func(text string)

func (w writerFunc) Write(text []byte) (int, error) { w(string(text)); return len(text), nil }

// TestRestartSpread waits before the first restart only, and keeps what others write to
// the file meanwhile.
func TestRestartSpread(t *testing.T) {
	t.Parallel()
	b := newBed(t, mine)
	for _, first := range []bool{true, false} {
		waits := false
		command := newConfigureCommand("linux")
		command.SetErr(writerFunc(func(text string) {
			if strings.Contains(text, "--restart-spread") {
				waits = true
				b.write(t, b.config, mine+"oom_score = -999\n")
			}
		}))
		command.SetArgs(b.arguments(append([]string{"configure", "--restart-spread", "10ms"}, b.restart()...))[1:])
		if err := command.ExecuteContext(t.Context()); err != nil || waits != first {
			t.Errorf("waits: %t, %v", waits, err)
		}
	}
	if got := b.read(t); !strings.Contains(got, "oom_score = -999") || !strings.Contains(got, b.shim) {
		t.Errorf("the configuration is\n%s", got)
	}
}

// TestIsOutdated: containerd is restarted for our own change only, and only once.
func TestIsOutdated(t *testing.T) {
	t.Parallel()
	for _, program := range []string{containerdProgram, "systemd"} {
		b := newBed(t, mine)
		socket := b.socket + "2"
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
		target, m := target{criSocket: socket}, &managedFile{path: b.config, state: b.root}
		check := func(when string, want bool) {
			t.Helper()
			if got := target.isOutdated(t.Context(), m); got != want {
				t.Errorf("%s, %s: %t", program, when, got)
			}
		}
		b.write(t, b.config, mine+"# changed\n")
		check("changed by others", false)
		b.write(t, m.record().path, "{}")
		check("changed since it was started", program == containerdProgram)
		for when, offset := range map[string]time.Duration{"changed before it was started": -time.Hour, "the clock was set back since": time.Hour} {
			at := time.Now().Add(offset)
			if err := os.Chtimes(m.record().path, at, at); err != nil {
				t.Fatal(err)
			}
			check(when, false)
		}
	}
}

// TestConfigurationKeepsItsGroup, and the copy has it too: both can have credentials.
func TestConfigurationKeepsItsGroup(t *testing.T) {
	t.Parallel()
	b := newBed(t, mine)
	if os.Chown(b.config, 0, 23456) != nil {
		return // Only root can.
	}
	if err := errors.Join(os.Chmod(b.config, 0o640), os.Chown(b.root, 0, 34567), os.Chmod(b.root, 0o755|os.ModeSetgid)); err != nil {
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
	flags, _ := b.restarts(t)
	if _, _, err := b.run(t, append([]string{"configure"}, flags...)...); err == nil || b.read(t) != mine {
		t.Errorf("the change was not undone: %v", err)
	}
	check("restored", b.config)
	b.must(t, "configure")
	check("configured", b.config, b.config+backupSuffix)
	b.must(t, "unconfigure")
	check("unconfigured", b.config)
}
