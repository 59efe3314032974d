//go:build e2e && linux

package bed

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	startTimeout = 60 * time.Second // until a program serves
	stopTimeout  = 30 * time.Second // until it has ended after SIGTERM
)

// Process is a program of the node that a test can start and stop. It is not safe for
// concurrent use.
type Process struct {
	// Name names it in messages.
	Name string

	cmd     func() *exec.Cmd
	log     string
	onStart func() // called before each start, may be nil

	running *exec.Cmd
	ended   chan struct{} // closed when running ended and was waited for
}

// NewProcess makes a process that is not running yet. Each start calls cmd for
// a fresh command; its output is appended to the file log.
func NewProcess(name, log string, cmd func() *exec.Cmd) *Process {
	return &Process{Name: name, cmd: cmd, log: log}
}

// StartForTest starts the process, which must run until the test ends.
func (p *Process) StartForTest(t testing.TB) {
	t.Helper()
	p.Start(t)
	t.Cleanup(func() {
		if p.Running() {
			p.Kill(t)
		} else {
			t.Errorf("%s ended\n%s", p.Name, p.Tail(30))
		}
	})
}

// Start starts the process, which must not run.
func (p *Process) Start(t testing.TB) {
	t.Helper()
	if p.Running() {
		t.Fatalf("start %s: it runs already", p.Name)
	}
	if p.onStart != nil {
		p.onStart()
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatalf("open the log of %s: %v", p.Name, err)
	}
	defer log.Close()
	cmd := p.cmd()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", p.Name, err)
	}
	p.running, p.ended = cmd, make(chan struct{})
	go func(ended chan struct{}) { // Ends with the process; stop and Kill wait for it.
		defer close(ended)
		_ = cmd.Wait() // The status is read from cmd.ProcessState.
	}(p.ended)
}

// Running reports whether the process was started and has not ended.
func (p *Process) Running() bool {
	if p.ended == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// wait waits until check returns nil, and ends the test if the process ends.
func (p *Process) wait(t testing.TB, what string, check func() error) {
	t.Helper()
	Eventually(t, startTimeout, what, func() error {
		if !p.Running() {
			t.Fatalf("%s ended\n%s", p.Name, p.Tail(30))
		}
		return check()
	})
}

// PID returns the process ID of a process that was started.
func (p *Process) PID() int { return p.running.Process.Pid }

// Stop terminates the process, whose exit status must be 0.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	if code := p.Terminate(t); code != 0 {
		t.Errorf("%s ended with status %d after SIGTERM, want 0\n%s", p.Name, code, p.Tail(15))
	}
}

// Terminate sends SIGTERM and returns the exit status, -1 if a signal ended the
// process. It fails the test if the process does not end in time.
func (p *Process) Terminate(t testing.TB) int {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.running.Process.Kill()
		<-p.ended
		t.Errorf("%s did not end within %v of SIGTERM\n%s", p.Name, stopTimeout, p.Tail(15))
	}
	return p.running.ProcessState.ExitCode()
}

// Kill ends the process at once, as a crash would.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	<-p.ended
}

// Freeze suspends the process until Thaw.
func (p *Process) Freeze(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	Eventually(t, 10*time.Second, p.Name+" is suspended", func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if err != nil {
			return err
		}
		// "pid (name) state ...": the name can contain spaces.
		_, rest, _ := strings.Cut(string(stat), ") ")
		if !strings.HasPrefix(rest, "T") {
			return fmt.Errorf("its state is %.1s", rest)
		}
		return nil
	})
}

// Thaw resumes a frozen process.
func (p *Process) Thaw(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGCONT)
}

func (p *Process) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if !p.Running() {
		t.Fatalf("send %v to %s: it does not run\n%s", sig, p.Name, p.Tail(15))
	}
	if err := p.running.Process.Signal(sig); err != nil {
		t.Fatalf("send %v to %s: %v", sig, p.Name, err)
	}
}

// Mark is a place in a process's log.
type Mark int

// Mark returns the log's present end.
func (p *Process) Mark() Mark { return Mark(len(p.Log(0))) }

// Log returns what the process logged since mark, over all of its starts.
func (p *Process) Log(since Mark) string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return "" // It was never started.
	}
	return string(data[min(int(since), len(data)):])
}

// Tail returns the log's last n lines under a heading.
func (p *Process) Tail(n int) string {
	lines := bytes.Split(bytes.TrimSpace([]byte(p.Log(0))), []byte("\n"))
	lines = lines[max(0, len(lines)-n):]
	return fmt.Sprintf("---- %s, the last lines of %s\n%s", p.Name, p.log, bytes.Join(lines, []byte("\n")))
}

// Memory returns the bytes that the process keeps in memory, and the most at any time.
func (p *Process) Memory(t testing.TB) (resident, peak uint64) {
	t.Helper()
	for line := range strings.Lines(string(ReadFile(t, fmt.Sprintf("/proc/%d/status", p.PID())))) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &resident)
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &peak)
	}
	return resident << 10, peak << 10
}
