//go:build unix

package trusted

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := Check(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for perm, trusted := range map[fs.FileMode]bool{0o600: true, 0o644: true, 0o664: false, 0o646: false} {
		if err := os.Chmod(path, perm); err != nil {
			t.Fatal(err)
		}
		if err := Check(path); errors.Is(err, ErrUntrusted) == trusted || trusted && err != nil {
			t.Errorf("%v: %v", perm, err)
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 12345, 12345); err != nil {
		return // An ordinary user gives no file away.
	}
	if err := Check(path); !errors.Is(err, ErrUntrusted) {
		t.Errorf("somebody else's: %v", err)
	}
}
