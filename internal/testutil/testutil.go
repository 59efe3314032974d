// Package testutil has helpers that the tests of several packages share.
package testutil

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

// Timeout is how long tests wait for a condition.
const Timeout = 20 * time.Second

// Eventually waits until condition returns true. It fails the test after [Timeout].
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Timeout); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, Timeout)
		}
	}
}

// NoError ends the test if a step that it depends on has failed.
func NoError(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// CheckError fails the test unless err contains want, in its text or its remedy. No error is expected if want is "".
func CheckError(t testing.TB, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || !strings.Contains(errlog.Text(err), want) {
		t.Errorf("%s: error %q, want %q", what, errlog.Text(err), want)
	}
}

// WriteFile writes a file, which can be a program, and creates its directory.
func WriteFile(t testing.TB, path, text string, perm fs.FileMode) {
	t.Helper()
	// A process that is forked during the write would have the file open for a moment longer, and
	// the program could not be run: https://go.dev/issue/22315.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	NoError(t, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), perm))
}

// ShortDir returns a temporary directory whose path leaves room for a socket's name,
// which can have 107 bytes. The paths of t.TempDir contain the name of the test.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dx")
	NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Quiet returns a logger that discards its output.
func Quiet() *logrus.Logger { return errlog.NewLogger(io.Discard) }
