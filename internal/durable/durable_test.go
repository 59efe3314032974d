package durable

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

func TestReplaceKeepsWhatWasThereWhenItFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := Replace(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("new"), 0o640); err != nil {
		t.Fatal(err)
	}
	// A failed publication stands for every failure after the first byte.
	failed := errors.New("no")
	err := write(path, []byte("worse"), 0o600, func(string, string) error { return failed }, syncFolder)
	if !errors.Is(err, failed) {
		t.Fatalf("error %v, want %v", err, failed)
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "new" {
		t.Fatalf("content %q, %v; want %q", got, err, "new")
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d files left, %v; want the file alone", len(entries), err)
	}
}

// TestReplaceFailsTheSameWayTwice, so that who tries again and again can tell that
// nothing has changed.
func TestReplaceFailsTheSameWayTwice(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	taken := filepath.Join(folder, "taken")
	if err := os.MkdirAll(filepath.Join(taken, "file"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"no folder": filepath.Join(folder, "none", "file"), "a folder in its place": taken} {
		first, second := Replace(path, nil, 0o600), Replace(path, nil, 0o600)
		if first == nil || second == nil || first.Error() != second.Error() {
			t.Errorf("%s: %v, then %v", name, first, second)
		}
		if name == "no folder" && !errors.Is(first, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, first)
		}
	}
}

func TestCreateHasOneWinner(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	var won atomic.Int32
	var winner atomic.Value
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			content := "writer " + strconv.Itoa(i)
			err := Create(path, []byte(content), 0o600)
			if err == nil {
				won.Add(1)
				winner.Store(content)
			} else if !errors.Is(err, fs.ErrExist) {
				t.Errorf("loser's error %v does not match fs.ErrExist", err)
			}
		})
	}
	group.Wait()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if won.Load() != 1 || string(got) != winner.Load() {
		t.Fatalf("%d writers won and the file says %q; want one, and its content", won.Load(), got)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d files left, %v; want the file alone", len(entries), err)
	}
}

func TestReadEndsAtTheLimit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]string{3: "123", 5: "12345", math.MaxInt64: "12345"} {
		if got, err := Read(path, limit); err != nil || string(got) != want {
			t.Errorf("at most %d bytes: %q, %v; want %q", limit, got, err, want)
		}
	}
	if _, err := Read(path+"2", 3); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestIsTemp(t *testing.T) {
	t.Parallel()
	f, err := os.CreateTemp(t.TempDir(), tempPrefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if !IsTemp(filepath.Base(f.Name())) || IsTemp("0123.json") {
		t.Fatal("IsTemp does not tell our temporary names from others")
	}
}
