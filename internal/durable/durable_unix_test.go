//go:build unix

package durable

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestMakePrivate(t *testing.T) {
	t.Parallel()
	base := t.TempDir()

	folder := filepath.Join(base, "a", "b")
	if err := MakePrivate(folder); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("new folder: mode %v, %v; want 0700", info.Mode(), err)
	}

	readable := filepath.Join(base, "readable")
	if err := os.Mkdir(readable, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := MakePrivate(readable); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(readable); err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("readable folder: mode %v, %v; want 0700", info.Mode(), err)
	}

	open := filepath.Join(base, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := MakePrivate(open); !errors.Is(err, ErrNotPrivate) {
		t.Errorf("folder that others can write to: error %v, want ErrNotPrivate", err)
	}

	link := filepath.Join(base, "link")
	if err := os.Symlink(folder, link); err != nil {
		t.Fatal(err)
	}
	if err := MakePrivate(link); !errors.Is(err, ErrNotPrivate) {
		t.Errorf("symlink: error %v, want ErrNotPrivate", err)
	}
}
