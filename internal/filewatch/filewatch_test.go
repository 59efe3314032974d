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
	go func() {
		defer close(ended)
		Watch(ctx, Options{Files: files, Debounce: time.Millisecond, Interval: interval}, func() {
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
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
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
		{"replace", func() { write(t, next, "3"); settle(changes); must(t, os.Rename(next, file)) }},
		{"remove", func() { must(t, os.Remove(file)) }},
	} {
		settle(changes)
		change.make()
		await(t, changes, change.name)
	}
}

// Changes that come faster than the debounce time do not postpone the call.
func TestWatchBusyDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	changes := start(t, time.Hour, filepath.Join(dir, "*.sock"))
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = os.WriteFile(filepath.Join(dir, "a.sock"), nil, 0o600)
		}
	}()
	for range 3 {
		await(t, changes, "a write")
	}
	cancel()
	<-ended
}

func TestWatchReportsFailureOnce(t *testing.T) {
	t.Parallel()
	notify, err := fsnotify.NewWatcher()
	must(t, err, notify.Close()) // A closed watcher refuses all directories.
	var failures []error
	w := watcher{
		Options: Options{Failed: func(err error) { failures = append(failures, err) }},
		notify:  notify, dirs: map[string]fs.FileInfo{t.TempDir(): nil},
	}
	w.refresh()
	w.refresh()
	if len(failures) != 1 || !errors.Is(failures[0], fsnotify.ErrClosed) {
		t.Errorf("failures %v", failures)
	}
}

func TestWatchVolume(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	publish := func(version string) {
		must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		link, temp := filepath.Join(dir, "..data"), filepath.Join(dir, "..data_tmp")
		if err := os.Symlink(version, temp); err != nil {
			t.Skipf("no symbolic links: %v", err)
		}
		if _, err := os.Lstat(temp); err != nil {
			t.Skipf("no symbolic links in this Wine: %v", err)
		}
		if runtime.GOOS == "windows" { // A directory cannot be renamed over another.
			_ = os.Remove(link)
		}
		must(t, os.Rename(temp, link))
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
	must(t, err)
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
	must(t, os.Mkdir(in("v1"), 0o700), os.Mkdir(in("v2"), 0o700), os.Symlink("v1", in("now")))
	check("created", true)
	check("unchanged", true)
	must(t, os.Symlink("v2", in("next")), os.Rename(in("next"), in("now")))
	check("other target", true)
	must(t, os.Rename(in("v2"), in("v3")))
	check("moved", false)
	must(t, os.Rename(in("v3"), in("v2")))
	check("moved back", true)
	must(t, os.Remove(in("now")))
	check("removed", false)
}
