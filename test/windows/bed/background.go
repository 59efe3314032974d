//go:build e2e && linux

package bed

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Background is a program of the prefix that goes on by itself.
type Background struct {
	cmd    *exec.Cmd
	output string // file
	log    string // file
	ended  sync.WaitGroup
}

// Background starts a program, which is called name in the test's log. It ends
// with the test.
func (w *Wine) Background(t testing.TB, name string, cmd *exec.Cmd) *Background {
	t.Helper()
	dir := t.TempDir()
	b := &Background{cmd: cmd, output: filepath.Join(dir, "output"), log: filepath.Join(dir, "log")}
	stdout, err := os.Create(b.output)
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	stderr, err := os.Create(b.log)
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	b.ended.Go(func() { _ = cmd.Wait() }) // Killed, or seen by its silence.
	t.Cleanup(func() {
		b.Kill()
		if t.Failed() {
			t.Logf("---- the log of %s\n%s", name, b.Log(t))
		}
	})
	return b
}

// Kill ends it at once, and returns when it has ended.
func (b *Background) Kill() {
	_ = b.cmd.Process.Kill() // Fails when it has ended.
	b.ended.Wait()
}

// Output returns what it has printed to standard output.
func (b *Background) Output(t testing.TB) string { return b.read(t, b.output) }

// Log returns what it has logged, to standard error.
func (b *Background) Log(t testing.TB) string { return b.read(t, b.log) }

func (b *Background) read(t testing.TB, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
