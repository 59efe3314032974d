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
