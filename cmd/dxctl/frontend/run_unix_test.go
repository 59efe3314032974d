//go:build unix

package frontend

import (
	"bufio"
	"io"
	"os"
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
