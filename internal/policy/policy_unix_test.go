//go:build unix

package policy

import (
	"errors"
	"os"
	"testing"

	"directx-nri/internal/durable"
)

func TestReadRefusesOpenDirectory(t *testing.T) {
	t.Parallel()
	stateDir := t.TempDir()
	if err := Write(stateDir, Default()); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(stateDir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(stateDir); !errors.Is(err, durable.ErrNotPrivate) {
		t.Errorf("error %v, want %v", err, durable.ErrNotPrivate)
	}
}
