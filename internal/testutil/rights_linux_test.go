package testutil_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"directx-nri/internal/testutil"
)

func TestModesKeepOut(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0); err != nil {
		t.Fatal(err)
	}
	testutil.KeptOutByModes(t)
	if _, err := os.ReadFile(file); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a file that nobody may read: %v", err)
	}
	if err := os.Chmod(file, 0o600); err != nil { // It is the test's still.
		t.Error(err)
	}
}
