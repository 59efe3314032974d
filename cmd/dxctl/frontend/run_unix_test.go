//go:build unix

package frontend

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

func TestSignalledProgram(t *testing.T) {
	t.Parallel()
	status, err := Run(Command{Path: "/bin/sh", Args: []string{"-c", "kill -KILL $$"}})
	if err != nil || status != 128+int(syscall.SIGKILL) {
		t.Errorf("status %d, %v", status, err)
	}
}

// TestSignalsArePassedOn tells this process to end, and the program is told. It
// does not run beside others: they would be told too.
func TestSignalsArePassedOn(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for _, test := range []struct {
		signal syscall.Signal
		status int
	}{{syscall.SIGTERM, 42}, {syscall.SIGINT, 43}} {
		type result struct {
			status int
			err    error
		}
		done := make(chan result, 1)
		go func() {
			status, err := Run(Command{
				Path:   "/bin/sh",
				Args:   []string{"-c", "trap 'exit 42' TERM; trap 'exit 43' INT; echo ready; while :; do sleep 0.05; done"},
				Stdout: writer,
			})
			done <- result{status, err}
		}()
		if line, err := bufio.NewReader(io.LimitReader(reader, 6)).ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if err := syscall.Kill(os.Getpid(), test.signal); err != nil {
			t.Fatal(err)
		}
		if got := <-done; got.err != nil || got.status != test.status {
			t.Errorf("%v: %+v", test.signal, got)
		}
	}
	writer.Close()
}

// What a terminal has told the program, it is not told a second time.
func TestKeysAreNotPassedOn(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/bin/sh", "-c", "trap 'exit 42' TERM; trap 'exit 43' INT; trap 'exit 44' QUIT; echo ready; while :; do sleep 0.05; done")
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil || line != "ready\n" {
		t.Errorf("%q, %v", line, err)
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		passOn(cmd.Process, s, true)
	}
	_ = cmd.Wait()
	if status := exitStatus(cmd.ProcessState); status != 42 {
		t.Errorf("status %d, want that of the trap for TERM", status)
	}
}

// A terminal tells the program of its keys, whichever of its streams is a pipe.
func TestOnTerminal(t *testing.T) {
	t.Parallel()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be had: %v", err)
	}
	defer terminal.Close()
	pipe, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer writer.Close()
	for name, test := range map[string]struct {
		command Command
		want    bool
	}{
		"all":       {Command{Stdin: terminal, Stdout: terminal, Stderr: terminal}, true},
		"no input":  {Command{Stdin: pipe, Stdout: terminal, Stderr: terminal}, true},
		"no output": {Command{Stdin: pipe, Stdout: writer, Stderr: terminal}, true},
		"none":      {Command{Stdin: pipe, Stdout: writer}, false},
	} {
		if got := test.command.onTerminal(); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
