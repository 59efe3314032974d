package filewatch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"directx-nri/internal/testutil"
)

// start watches files, without polling unless interval is short, and returns what is
// signaled at each call.
func start(t *testing.T, interval time.Duration, files ...string) <-chan struct{} {
	t.Helper()
	changes, ended := make(chan struct{}, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	w := watcher{debounce: time.Millisecond, interval: interval}
	go func() {
		defer close(ended)
		w.run(ctx, files, func() {
			select {
			case changes <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	await(t, changes, "start")
	return changes
}

func await(t *testing.T, changes <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-changes:
	case <-time.After(testutil.Timeout):
		t.Fatalf("%s: no call", what)
	}
}

// settle waits until there are no more calls.
func settle(changes <-chan struct{}) {
	for {
		select {
		case <-changes:
		case <-time.After(50 * time.Millisecond):
			return
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, errors.Join(os.WriteFile(path, []byte(text), 0o600)))
}

func TestWatchFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, next := filepath.Join(dir, "file"), filepath.Join(dir, "next")
	changes := start(t, time.Hour, file, filepath.Join(t.TempDir(), "other", "file2"))
	for _, change := range []struct {
		name string
		make func()
	}{
		{"create", func() { write(t, file, "1") }},
		{"write", func() { write(t, file, "2") }},
		{"replace", func() { write(t, next, "3"); settle(changes); must(t, errors.Join(os.Rename(next, file))) }},
		{"remove", func() { must(t, errors.Join(os.Remove(file))) }},
	} {
		settle(changes)
		change.make()
		await(t, changes, change.name)
	}
}

func TestWatchIgnoresOtherFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	changes := start(t, time.Hour, filepath.Join(dir, "file"))
	settle(changes)
	write(t, filepath.Join(dir, "log"), "")
	select {
	case <-changes:
		t.Error("called for another file")
	case <-time.After(100 * time.Millisecond):
	}
}

func TestWatchVolume(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	publish := func(version string) {
		must(t, errors.Join(os.Mkdir(filepath.Join(dir, version), 0o700)))
		if err := os.Symlink(version, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Skipf("no symbolic links: %v", err)
		}
		must(t, errors.Join(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))))
	}
	publish("..1")
	changes := start(t, time.Hour, filepath.Join(dir, "file"))
	settle(changes)
	publish("..2")
	await(t, changes, "new content")
}

func TestWatchPolls(t *testing.T) {
	t.Parallel()
	changes := start(t, time.Millisecond, filepath.Join(t.TempDir(), "none", "file"))
	for range 3 {
		await(t, changes, "interval")
	}
}

// A directory can appear, be replaced, and return.
func TestRefresh(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not rename a watched directory")
	}
	base := t.TempDir()
	in := func(name string) string { return filepath.Join(base, name) }
	notify, err := fsnotify.NewWatcher()
	must(t, errors.Join(err))
	defer notify.Close()
	w := watcher{notify: notify, dirs: map[string]fs.FileInfo{in("now"): nil}}
	check := func(what string, watched bool) {
		t.Helper()
		w.refresh()
		if (w.dirs[in("now")] != nil) != watched {
			t.Fatalf("%s: watched %t, want %t", what, !watched, watched)
		}
		if !watched {
			return
		}
		name := in("now/" + what)
		write(t, name, "")
		for deadline := time.After(testutil.Timeout); ; {
			select {
			case e := <-notify.Events:
				if e.Name == name {
					return
				}
			case <-deadline:
				t.Fatalf("%s: no event", what)
			}
		}
	}
	check("missing", false)
	must(t, errors.Join(os.Mkdir(in("v1"), 0o700), os.Mkdir(in("v2"), 0o700), os.Symlink("v1", in("now"))))
	check("created", true)
	check("unchanged", true)
	must(t, errors.Join(os.Symlink("v2", in("next")), os.Rename(in("next"), in("now"))))
	check("other target", true)
	must(t, errors.Join(os.Rename(in("v2"), in("v3"))))
	check("moved", false)
	must(t, errors.Join(os.Rename(in("v3"), in("v2"))))
	check("moved back", true)
	must(t, errors.Join(os.Remove(in("now"))))
	check("removed", false)
}
