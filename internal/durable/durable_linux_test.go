package durable

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// TestFilesAreSynced: after a power loss a file has its old or its new content. The test runs
// itself, to see its system calls.
func TestFilesAreSynced(t *testing.T) {
	t.Parallel()
	const variable = "DURABLE_TEST_FILE"
	writers := map[string]func(path string, data []byte, perm os.FileMode) error{"replace": Replace, "create": Create}
	if path := os.Getenv(variable); path != "" {
		if err := writers[filepath.Base(path)](path, []byte("x"), 0o600); err != nil {
			t.Error(err)
		}
		return
	}
	names := map[uint64]string{syscall.SYS_FSYNC: "sync", syscall.SYS_RENAMEAT: "rename", syscall.SYS_LINKAT: "link"}
	for writer, want := range map[string][]string{"replace": {"sync", "rename", "sync"}, "create": {"sync", "link"}} {
		command := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestFilesAreSynced$") //nolint:gosec // This very program.
		command.Env = append(os.Environ(), variable+"="+filepath.Join(t.TempDir(), writer))
		var calls []string
		status, err := testutil.Trace(command, func(_ int, number uint64) bool {
			if name := names[number]; name != "" {
				calls = append(calls, name)
			}
			return false
		})
		if err != nil || status.ExitStatus() != 0 || !slices.Equal(calls, want) {
			t.Errorf("%s: %v, status %v, error %v, want %v", writer, calls, status, err, want)
		}
	}
}

//nolint:paralleltest // The umask is that of the process.
func TestMakeReadable(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dir := t.TempDir() // of mode 0700, which stays
	for range 2 {
		testutil.NoError(t, MakeReadable(filepath.Join(dir, "a", "b")))
	}
	for path, want := range map[string]os.FileMode{"": 0o700, "a": 0o755, "a/b": 0o755} {
		info, err := os.Stat(filepath.Join(dir, path))
		testutil.NoError(t, err)
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%q has mode %o, want %o", path, got, want)
		}
	}
}
