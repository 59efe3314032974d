//go:build e2e && linux

package bed

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// ReadFile returns the content of a file, which must be there.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	testutil.NoError(t, err)
	return data
}

// WriteFile writes a file in one step, so that no one reads half of it, and makes its
// directory. No process that another test starts meanwhile inherits it open for writing,
// so a program can be run at once. It returns the path.
func WriteFile(t testing.TB, path, content string, perm os.FileMode) string {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	// A dot in front keeps the kubelet from reading a half-written manifest.
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	testutil.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(temp, []byte(content), perm), os.Chmod(temp, perm), os.Rename(temp, path))
	return path
}

// pollInterval is the time between two checks of a condition.
const pollInterval = 50 * time.Millisecond

// Eventually waits until check returns nil, and ends the test with its last
// error when that takes longer than timeout. It returns how long it took.
func Eventually(t testing.TB, timeout time.Duration, what string, check func() error) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		err := check()
		took := time.Since(start)
		if err == nil {
			return took
		}
		if took > timeout {
			t.Fatalf("waited %v for this: %s. Last seen: %v", timeout, what, err)
		}
		time.Sleep(pollInterval)
	}
}

// Never calls check for the given time, and ends the test if it returns an error.
func Never(t testing.TB, during time.Duration, what string, check func() error) {
	t.Helper()
	for start := time.Now(); time.Since(start) < during; time.Sleep(pollInterval) {
		if err := check(); err != nil {
			t.Fatalf("this must not happen: %s. It did after %v: %v", what, time.Since(start).Round(time.Millisecond), err)
		}
	}
}

// MustContain fails the test unless a text has every one of parts, in any case of letters.
func MustContain(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(strings.ToLower(text), strings.ToLower(part)) {
			t.Errorf("%s has no %q: %s", what, part, text)
		}
	}
}
