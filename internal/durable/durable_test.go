package durable

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// onlyFile checks that a directory contains one file, with the given content.
func onlyFile(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("content %q, %v; want %q", got, err, want)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("%d files, %v; want 1", len(entries), err)
	}
}

func TestReplaceKeepsOldFileOnFailure(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	for _, text := range []string{"old", "new"} {
		testutil.NoError(t, Replace(path, []byte(text), 0o640))
	}
	// A failed rename stands for every failure after the first byte.
	failed := errors.New("no")
	err := write(path, []byte("worse"), 0o600, true, func(string, string) error { return failed })
	if !errors.Is(err, failed) {
		t.Fatalf("error %v, want %v", err, failed)
	}
	onlyFile(t, path, "new")
}

// TestReplaceRemovesLeftovers: those of programs that were killed, and not those of programs that write now.
func TestReplaceRemovesLeftovers(t *testing.T) {
	t.Parallel()
	dir, old := t.TempDir(), time.Now().Add(-2*leftoverAge)
	left, young, other := filepath.Join(dir, tempPrefix+"1"), filepath.Join(dir, tempPrefix+"2"), filepath.Join(dir, "other")
	for _, path := range []string{left, young, other} {
		testutil.WriteFile(t, path, "", 0o600)
	}
	testutil.NoError(t, os.Chtimes(left, old, old), os.Chtimes(other, old, old), Replace(filepath.Join(dir, "file"), nil, 0o600))
	if Exists(left) || !Exists(young) || !Exists(other) {
		t.Errorf("exist: left %t, young %t, other %t", Exists(left), Exists(young), Exists(other))
	}
	testutil.NoError(t, RemoveTemps(filepath.Join(dir, "nowhere")))
}

// TestModeOfTemporaryFile: others cannot read at any moment what they cannot read in the end.
func TestModeOfTemporaryFile(t *testing.T) {
	t.Parallel()
	for _, perm := range []fs.FileMode{0o600, 0o640, 0o644} {
		path := filepath.Join(t.TempDir(), "file")
		err := write(path, []byte("secret"), perm, false, func(temp, path string) error {
			if info, err := os.Stat(temp); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != perm {
				t.Errorf("temporary file: %v, %v, want %v", info.Mode(), err, perm)
			}
			return Rename(temp, path)
		})
		testutil.NoError(t, err)
	}
}

// TestUpdate: a file that has the content is left as it is.
func TestUpdate(t *testing.T) {
	t.Parallel()
	path, old := filepath.Join(t.TempDir(), "file"), time.Unix(1e9, 0)
	testutil.WriteFile(t, path, "a", 0o600)
	for _, text := range []string{"a", "ab", ""} {
		err := errors.Join(os.Chtimes(path, old, old), Update(path, []byte(text), 0o600))
		info, statErr := os.Stat(path)
		if err := errors.Join(err, statErr); err != nil || info.ModTime().Equal(old) != (text == "a") {
			t.Errorf("%q: error %v, modified %v", text, err, info.ModTime())
		}
		onlyFile(t, path, text)
	}
}

// The random temporary name is not in the error.
func TestReplaceErrorIsStable(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	taken := filepath.Join(base, "taken")
	testutil.NoError(t, os.MkdirAll(filepath.Join(taken, "file"), 0o700))
	for path, want := range map[string]error{filepath.Join(base, "none", "file"): fs.ErrNotExist, taken: nil} {
		first, second := Replace(path, nil, 0o600), Replace(path, nil, 0o600)
		if first == nil || second == nil || first.Error() != second.Error() || want != nil && !errors.Is(first, want) {
			t.Errorf("%v, then %v", first, second)
		}
	}
}

func TestReadLimit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	testutil.WriteFile(t, path, "12345", 0o600)
	for limit, want := range map[int64]string{3: "123", 5: "12345", math.MaxInt64: "12345"} {
		if got, err := Read(path, limit); err != nil || string(got) != want {
			t.Errorf("limit %d: %q, %v; want %q", limit, got, err, want)
		}
	}
	if _, err := Read(path+"2", 3); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	testutil.WriteFile(t, path, "", 0o600)
	testutil.NoError(t, Remove(path), Remove(path))
	testutil.WriteFile(t, path, "", 0o600)
	if err := Remove(dir); err == nil || !Exists(path) {
		t.Errorf("a directory that is not empty: %v", err)
	}
}
