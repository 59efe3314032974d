package diversion

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// Copies of this test's program are shims. What a copy is, is at its end.
const (
	oursMark = "\nthis is our shim"
	realMark = "\nthis is the real shim"
)

// Arguments of this program.
const (
	startArgument  = "start"              // as containerd runs a shim
	starterProgram = "--starter-in-tests" // starts the shim at a path until its standard input ends
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == startArgument:
		os.Exit(actAsShim()) //nolint:forbidigo // This process is a shim.
	case len(os.Args) == 3 && os.Args[1] == starterProgram:
		fmt.Print(startAgainAndAgain(os.Args[2]))
		return
	}
	m.Run()
}

// actAsShim runs the real shim if this program is ours.
func actAsShim() int {
	program, err := os.Open("/proc/self/exe") // This file, also when another one has its path.
	if err != nil {
		return 2
	}
	end := make([]byte, len(oursMark))
	if _, err = program.Seek(-int64(len(end)), io.SeekEnd); err == nil {
		_, err = io.ReadFull(program, end)
	}
	if err != nil {
		return 3
	}
	if string(end) != oursMark {
		return 0
	}
	time.Sleep(20 * time.Millisecond) // Our shim reads and edits the spec.
	if err := exec.Command(paths.RealShim(filepath.Dir(os.Args[0])), startArgument).Run(); err != nil {
		fmt.Fprintln(os.Stderr, "ours:", err)
		return 4
	}
	return 0
}

// startAgainAndAgain returns the output of a start that failed, "" if none did.
func startAgainAndAgain(shim string) string {
	var group sync.WaitGroup
	var ended atomic.Bool
	failures := make(chan string, 1)
	for range 2 {
		group.Go(func() {
			for !ended.Load() {
				if out, err := exec.Command(shim, startArgument).CombinedOutput(); err != nil {
					select {
					case failures <- fmt.Sprintf("%v %s", err, out):
					default:
					}
				}
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	ended.Store(true)
	group.Wait()
	close(failures)
	return <-failures
}

// TestStartsGoOn: while the diversion is made and undone, no start of a container fails.
func TestStartsGoOn(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile("/proc/self/exe")
	testutil.NoError(t, err)
	n := newNode(t, string(program)+realMark, "")
	n.isOurs = func(path string) (bool, error) {
		data, err := os.ReadFile(path)
		return bytes.HasSuffix(data, []byte(oursMark)), err
	}
	remove := n.files.remove
	n.files.remove = func(path string) error { // as on Windows
		if runs(path) {
			return errInUse
		}
		return remove(path)
	}
	n.files.isInUse = func(err error) bool { return errors.Is(err, errInUse) }
	ours := newFile(t, string(program)+oursMark)

	// The writer of a program must not fork: https://go.dev/issue/22315.
	starter := exec.CommandContext(t.Context(), "/proc/self/exe", starterProgram, n.place())
	var output strings.Builder
	starter.Stdout, starter.Stderr = &output, &output
	end, err := starter.StdinPipe()
	testutil.NoError(t, err, starter.Start())
	for range 20 {
		_, err := n.Install(t.Context(), ours)
		n.checks(nil)
		_, removeErr := n.Remove(t.Context())
		n.checks(ErrNotDiverted)
		if err := errors.Join(err, removeErr); err != nil {
			t.Error(err)
		}
	}
	testutil.NoError(t, end.Close(), starter.Wait())
	if output.Len() > 0 {
		t.Error(output.String())
	}
	_, err = n.Remove(t.Context()) // The last one leaves what a start ran from then.
	testutil.NoError(t, err)
	if entries, err := os.ReadDir(n.dir); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// runs reports whether a process runs the program at path.
func runs(path string) bool {
	file, err := os.Stat(path)
	if err != nil {
		return false
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, process := range processes {
		if running, err := os.Stat(process); err == nil && os.SameFile(file, running) {
			return true
		}
	}
	return false
}
