package hostfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	testutil.WriteFile(t, filepath.Join(root, "usr/lib/wsl/lib/libd3d12.so.1"), "", 0o644)
	for link, target := range map[string]string{
		"usr/lib/wsl/lib/libd3d12.so": "libd3d12.so.1",
		"opt":                         "/usr/lib",
		"dangling":                    "/nowhere",
		"out":                         "../../../../../../etc/hostname",
	} {
		testutil.NoError(t, os.Symlink(target, filepath.Join(root, link)))
	}
	resolves := map[string]string{
		"/usr/lib/wsl/lib/libd3d12.so.1": "/usr/lib/wsl/lib/libd3d12.so.1",
		"/opt/wsl/lib/libd3d12.so":       "/usr/lib/wsl/lib/libd3d12.so.1",
		"/usr/lib/wsl":                   "/usr/lib/wsl",
		"/dangling":                      "",
		"/out":                           "",
		`C:\Windows\System32\b.dll`:      "",
	}
	for path, want := range resolves {
		got, err := Root(root).MountSource(path)
		if want == "" && !errors.Is(err, fs.ErrNotExist) || want != "" && (err != nil || got != want) {
			t.Errorf("%s resolves to %q, %v; want %q", path, got, err, want)
		}
	}
}

func TestDeviceNode(t *testing.T) {
	t.Parallel()
	got, err := Root("/").DeviceNode("/dev/null")
	testutil.NoError(t, err)
	if got.Path != "/dev/null" || got.Type != "c" || got.Major != 1 || got.Minor != 3 || got.FileMode.Perm() != 0o666 {
		t.Errorf("/dev/null is %+v", got)
	}
	if _, err := Root("/").DeviceNode("/etc/hostname"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file: error %v", err)
	}
	if _, err := Root("/").DeviceNode("/dev/no-such-node"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: error %v, want fs.ErrNotExist", err)
	}
}

// TestMountsBelowADirectory: /proc is one below the root directory.
func TestMountsBelowADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testutil.NoError(t, os.Symlink("/", filepath.Join(dir, "link")))
	const refused = "there is a mount at "
	for path, want := range map[string]string{"/": refused, dir + "/link": refused, dir: "", "/proc/self/status": ""} {
		_, err := Root("/").MountSource(path)
		testutil.CheckError(t, path, err, want)
	}
}
