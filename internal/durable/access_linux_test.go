package durable

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// On a read-only file system, what exists and is private is no error.
// TestMakePrivateOnReadOnlyFileSystem runs itself in namespaces of its own, where an
// ordinary user can mount.
func TestMakePrivateOnReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	const baseVariable = "DURABLE_TEST_BASE"
	base := os.Getenv(baseVariable)
	if base == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestMakePrivateOnReadOnlyFileSystem$") //nolint:gosec // This very program.
		cmd.Env = append(os.Environ(), baseVariable+"="+t.TempDir())
		cmd.SysProcAttr = &unix.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	dir := filepath.Join(base, "private")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, flags := range []uintptr{unix.MS_BIND, unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY} {
		if err := unix.Mount(base, base, "", flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := MakePrivate(dir); err != nil {
		t.Error(err)
	}
	if err := MakePrivate(filepath.Join(base, "new")); !errors.Is(err, unix.EROFS) {
		t.Errorf("a new directory: %v", err)
	}
}
