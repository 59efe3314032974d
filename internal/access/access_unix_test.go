//go:build unix

package access_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestMakePrivateCreatesPrivateDirectories(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "a", "b")
	testutil.NoError(t, access.MakePrivate(dir))
	for _, path := range []string{dir, filepath.Dir(dir)} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode %v, %v; want 0700", path, info.Mode(), err)
		}
	}
}

func TestMakePrivateLeavesExistingDirectories(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	link := filepath.Join(base, "link")
	testutil.NoError(t, os.Symlink(base, link), os.WriteFile(filepath.Join(base, "file"), nil, 0o600))
	for name, test := range map[string]struct {
		perm    fs.FileMode // 0: is not created
		private bool
	}{
		"0700": {0o700, true}, "0755": {0o755, true}, "0500": {0o500, true},
		"0777": {0o777, false}, "0775": {0o775, false}, "link": {}, "file": {},
	} {
		dir := filepath.Join(base, name)
		if test.perm != 0 {
			testutil.NoError(t, os.Mkdir(dir, 0o700), os.Chmod(dir, test.perm))
		}
		if err := access.MakePrivate(dir); (err == nil) != test.private {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Stat(dir); err != nil || test.perm != 0 && info.Mode().Perm() != test.perm {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
}

// TestCheckTrusted: who can write a directory of the program can replace it.
func TestCheckTrusted(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	testutil.NoError(t, os.MkdirAll(at("a/b"), 0o700), os.Mkdir(at("c"), 0o700),
		os.WriteFile(at("a/b/program"), nil, 0o700), //nolint:gosec // a program
		os.Symlink("/../a/b", at("c/link")), os.Symlink("/loop", at("loop")))
	for path, want := range map[string]error{"c/link/program": nil, "a/b/program": nil, "a/b/none": fs.ErrNotExist, "loop": syscall.ELOOP} {
		if got, err := access.CheckTrusted(base, path); !errors.Is(err, want) || err == nil && got != at("a/b/program") {
			t.Errorf("%s: %s, %v, want %v", path, got, err, want)
		}
	}
	for _, dir := range []string{"a", "a/b", "a/b/program", "c"} {
		for mode, trusted := range map[fs.FileMode]bool{0o777: dir == "c", 0o755: true, 0o777 | fs.ModeSticky: dir != "a/b/program"} {
			testutil.NoError(t, os.Chmod(at(dir), mode))
			_, err := access.CheckTrusted(base, "c/link/program")
			if errors.Is(err, access.ErrUntrusted) == trusted {
				t.Errorf("%s with mode %v: error %v, want %v", dir, mode, err, access.ErrUntrusted)
			}
		}
		testutil.NoError(t, os.Chmod(at(dir), 0o700))
	}
	testutil.NoError(t, os.Chmod(at("a/b"), 0o777|fs.ModeSticky))
	if _, err := access.CheckTrusted(base, "a/b"); !errors.Is(err, access.ErrUntrusted) {
		t.Errorf("a sticky directory, to which others can add files: %v", err)
	}
	testutil.NoError(t, os.Chmod(at("a/b"), 0o700))
	if err := os.Chown(at("a"), 12345, 12345); err != nil {
		return // Only root can.
	}
	if _, err := access.CheckTrusted(base, "c/link/program"); !errors.Is(err, access.ErrUntrusted) {
		t.Errorf("another user's directory: %v", err)
	}
	// Below this system's root, the result depends on the directories above.
	if _, err := access.CheckTrusted("", at("a")); err != nil && !errors.Is(err, access.ErrUntrusted) {
		t.Error(err)
	}
}
