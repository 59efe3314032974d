package filewatch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

const patience = 20 * time.Second // ends a test that hangs

// run is a watch that runs, and what it has told.
type run struct {
	t       *testing.T
	looks   chan bool
	trouble chan error
}

// quick has nothing be seen but by events, once a folder is watched.
var quick = Timing{Settle: time.Millisecond, Most: 50 * time.Millisecond, Poll: time.Hour, Search: 5 * time.Millisecond}

func begin(t *testing.T, folder string, timing Timing, concerns func(string) bool) run {
	t.Helper()
	r := run{t, make(chan bool, 100_000), make(chan error, 100_000)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Run(ctx, Options{
			Folder: folder, Concerns: concerns, Timing: timing,
			Look:    func(event bool) { r.looks <- event },
			Trouble: func(err error) { r.trouble <- err },
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	if event := <-r.looks; !event {
		t.Error("what was before the watch is not known to be seen")
	}
	return r
}

// event waits for a look that something has asked for.
func (r run) event(what string) {
	r.t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case event := <-r.looks:
			if event {
				return
			}
		case <-deadline:
			r.t.Fatalf("%s is not seen", what)
		}
	}
}

// quiet waits until no more looks come.
func (r run) quiet() {
	for {
		select {
		case <-r.looks:
		case <-time.After(20 * quick.Settle):
			return
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestRunSeesEachKindOfChange(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	in := func(name string) string { return filepath.Join(folder, name) }
	r := begin(t, folder, quick, nil)
	for _, change := range []struct {
		name string
		make func()
	}{
		{"a new file", func() { put(t, in("file"), "1") }},
		{"a file that is written in place", func() { put(t, in("file"), "2") }},
		{"a file that takes another's place", func() { put(t, in("next"), "3"); r.quiet(); must(t, os.Rename(in("next"), in("file"))) }},
		{"a file that is removed", func() { must(t, os.Remove(in("file"))) }},
	} {
		r.quiet()
		change.make()
		r.event(change.name)
	}
}

// TestRunSeesAVolumeChange as the kubelet makes it.
func TestRunSeesAVolumeChange(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	publish := func(version string) {
		must(t, os.Mkdir(filepath.Join(folder, version), 0o700))
		if err := os.Symlink(version, filepath.Join(folder, "..data_tmp")); err != nil {
			t.Skipf("no links here: %v", err)
		}
		must(t, os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, Data)))
	}
	publish("..1")
	r := begin(t, folder, quick, func(name string) bool { return filepath.Base(name) == Data })
	publish("..2")
	r.event("another version")
}

func TestRunLeavesOutWhatDoesNotConcern(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	asked := make(chan string, 1000)
	r := begin(t, folder, quick, func(name string) bool {
		asked <- filepath.Base(name)
		return filepath.Base(name) == "ours"
	})
	put(t, filepath.Join(folder, "log"), "")
	select {
	case name := <-asked:
		if name != "log" {
			t.Fatalf("asked of %q", name)
		}
	case <-time.After(patience):
		t.Fatal("nobody was asked")
	}
	r.quiet()
	if len(r.looks) != 0 {
		t.Error("a look for what does not concern")
	}
	put(t, filepath.Join(folder, "ours"), "")
	r.event("ours")
}

// TestRunLooksAtABusyFolder has changes come faster than Settle: they do not put
// the look off for ever.
func TestRunLooksAtABusyFolder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	r := begin(t, folder, Timing{Settle: time.Hour, Most: 20 * time.Millisecond, Poll: time.Hour}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		for ctx.Err() == nil {
			if err := os.WriteFile(filepath.Join(folder, "file"), nil, 0o600); err != nil {
				ended <- err
				return
			}
			time.Sleep(time.Millisecond)
		}
		ended <- nil
	}()
	r.event("a busy folder")
	cancel()
	must(t, <-ended)
}

func TestRunLooksNowAndThen(t *testing.T) {
	t.Parallel()
	r := begin(t, t.TempDir(), Timing{Settle: time.Hour, Most: time.Hour, Poll: time.Millisecond}, nil)
	for range 3 {
		select {
		case event := <-r.looks:
			if event {
				t.Error("nothing has changed")
			}
		case <-time.After(patience):
			t.Fatal("no look without an event")
		}
	}
}

// TestRunFollowsTheFolder has the folder come late, go, and come back as another.
func TestRunFollowsTheFolder(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	folder := filepath.Join(base, "folder")
	r := begin(t, folder, quick, nil)
	must(t, os.Mkdir(folder, 0o700))
	r.event("the folder")
	put(t, filepath.Join(folder, "file"), "")
	r.event("a file in it")

	if runtime.GOOS == "windows" {
		return // A folder that is watched keeps its name there.
	}
	// Its removal is an event, and then it is looked for.
	must(t, os.RemoveAll(folder))
	r.event("that it has gone")
	must(t, os.Mkdir(folder, 0o700))
	r.event("another folder")
	r.quiet()
	put(t, filepath.Join(folder, "file"), "")
	r.event("a file in the other folder")
	if len(r.trouble) != 0 {
		t.Errorf("a folder that is not there is no trouble: %v", <-r.trouble)
	}
}

// TestRunTellsTroubleOnce of a path that cannot be watched.
func TestRunTellsTroubleOnce(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a path through a file is one that is not there, on Windows")
	}
	file := filepath.Join(t.TempDir(), "file")
	put(t, file, "")
	r := begin(t, filepath.Join(file, "folder"), quick, nil)
	for range 5 {
		<-r.looks // It goes on.
	}
	if len(r.trouble) != 1 {
		t.Errorf("told %d times, want once", len(r.trouble))
	}
	must(t, os.Remove(file))
	must(t, os.MkdirAll(filepath.Join(file, "folder"), 0o700))
	r.event("that it is mended")
	put(t, filepath.Join(file, "folder", "x"), "")
	r.event("a file")
}

// TestWatchFollowsThePath has the path come to name another folder, which no event
// of the first one tells.
func TestWatchFollowsThePath(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	in := func(name string) string { return filepath.Join(base, name) }
	must(t, errors.Join(os.Mkdir(in("v1"), 0o700), os.Mkdir(in("v2"), 0o700)))
	if err := os.Symlink("v1", in("now")); err != nil {
		t.Skipf("no links here: %v", err)
	}
	var w watch
	defer w.close()
	ensure := func(want, watched bool) {
		t.Helper()
		if got := w.ensure(in("now"), func(err error) { t.Error(err) }); got != want || (w.watcher != nil) != watched {
			t.Errorf("another one %t, watched %t; want %t, %t", got, w.watcher != nil, want, watched)
		}
	}
	event := func(what string) {
		t.Helper()
		select {
		case <-w.events():
		case <-time.After(patience):
			t.Errorf("no event of %s", what)
		}
	}
	ensure(true, true)
	ensure(false, true)
	must(t, os.Remove(in("now")))
	ensure(true, false)
	ensure(false, false)
	must(t, os.Symlink("v1", in("now")))
	ensure(true, true)
	must(t, errors.Join(os.Symlink("v2", in("next")), os.Rename(in("next"), in("now"))))
	ensure(true, true)
	put(t, in("v2/file"), "")
	event("the folder that the path names now")

	// Away and back again ends a watch, though the folder is the same.
	must(t, os.Rename(in("v2"), in("v3")))
	for len(w.watcher.WatchList()) > 0 {
		event("the folder's renaming")
	}
	must(t, os.Rename(in("v3"), in("v2")))
	ensure(true, true)
	put(t, in("v2/file"), "")
	event("the folder that came back")
}

// TestSettle counts from the first event.
func TestSettle(t *testing.T) {
	t.Parallel()
	timing := Timing{Settle: time.Hour, Most: time.Millisecond}
	due, first := timing.settle(nil, time.Time{})
	if time.Since(first) > patience {
		t.Errorf("the first event is now, not at %v", first)
	}
	later, same := timing.settle(due, first)
	if !same.Equal(first) {
		t.Errorf("the first event stays the first: %v, %v", first, same)
	}
	<-later
}
