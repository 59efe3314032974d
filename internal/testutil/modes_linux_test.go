package testutil_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"directx-nri/internal/testutil"
)

func TestEnforceModes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0); err != nil {
		t.Fatal(err)
	}
	testutil.EnforceModes(t)
	if _, err := os.ReadFile(file); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("read a file of mode 0: %v", err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Errorf("change the mode of an own file: %v", err)
	}
}
