package hostfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
	paths := slices.Sorted(maps.Keys(resolves))
	all, errs := Root(root).ResolveAll(paths)
	for i, path := range paths {
		one, _, err := Root(root).Resolve(path)
		for _, got := range []struct {
			path string
			err  error
		}{{one, err}, {all[i], errs[i]}} {
			want := resolves[path]
			if want == "" && !errors.Is(got.err, fs.ErrNotExist) || want != "" && (got.err != nil || got.path != want) {
				t.Errorf("%s resolves to %q, %v; want %q", path, got.path, got.err, want)
			}
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
	_, errs := Root("/").ResolveAll([]string{"/", dir + "/link", dir, "/proc/self/status"})
	const refused = "there is a mount at "
	for i, want := range []string{refused, refused, "", ""} {
		testutil.CheckError(t, fmt.Sprint("path ", i), errs[i], want)
	}
}
