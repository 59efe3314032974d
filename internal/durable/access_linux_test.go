package durable

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// On a read-only file system, what exists and is private is no error.
func TestMakePrivateOnReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "private")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(base, base, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(base, 0); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", base, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := MakePrivate(dir); err != nil {
		t.Error(err)
	}
	if err := MakePrivate(filepath.Join(base, "new")); !errors.Is(err, unix.EROFS) {
		t.Errorf("a new directory: %v", err)
	}
}
