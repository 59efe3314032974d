package inventory

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"directx-nri/internal/filewatch"
)

const patience = 20 * time.Second // ends a test that hangs

// watched is a source whose Watch runs.
type watched struct {
	*Source
	t     *testing.T
	calls chan string       // the devices at each call of changed
	opens chan struct{}     // each time that the file was opened
	logs  chan logrus.Entry // what was logged
}

func (w *watched) Levels() []logrus.Level { return logrus.AllLevels }

func (w *watched) Fire(e *logrus.Entry) error {
	w.logs <- *e
	return nil
}

// watch opens the file and watches it. Looks without an event come once an
// hour unless tune says otherwise: the events must do it.
func watch(t *testing.T, path string, tune func(*Source)) *watched {
	t.Helper()
	log := logrus.New()
	log.Out = io.Discard
	s := Open(path, log)
	s.timing = filewatch.Timing{Settle: time.Millisecond, Most: time.Millisecond, Poll: time.Hour, Search: 5 * time.Millisecond}
	w := &watched{Source: s, t: t, calls: make(chan string, 1000), opens: make(chan struct{}, 10_000), logs: make(chan logrus.Entry, 10_000)}
	log.AddHook(w)
	s.reader.open = func(path string) (fs.File, error) {
		w.opens <- struct{}{}
		return os.Open(path)
	}
	if tune != nil {
		tune(s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- s.Watch(ctx, func() {
			devices, err := s.Devices(ctx)
			if err != nil {
				w.calls <- "error: " + err.Error()
				return
			}
			w.calls <- idsOf(devices)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Watch: %v", err)
		}
		if n := len(w.calls); n > 0 {
			t.Errorf("%d calls of changed that nothing asked for, the first with %q", n, <-w.calls)
		}
	})
	return w
}

// wantCall waits for changed and compares the devices.
func (w *watched) wantCall(want string) {
	w.t.Helper()
	select {
	case got := <-w.calls:
		if got != want {
			w.t.Errorf("changed with %q, want %q", got, want)
		}
	case <-time.After(patience):
		w.t.Fatalf("changed was not called; want %q; Err() = %v", want, w.Err())
	}
}

// wantOpened waits until the file is being read.
func (w *watched) wantOpened() {
	w.t.Helper()
	select {
	case <-w.opens:
	case <-time.After(patience):
		w.t.Fatal("the file was not read")
	}
}

// wantRead waits until the file was read for the first time.
func (w *watched) wantRead() { w.t.Helper(); w.wantLog(logrus.InfoLevel, "Read the inventory file") }

// wantBad waits until the file was found to be bad.
func (w *watched) wantBad() { w.wantLog(logrus.ErrorLevel, "cannot be used") }

// wantGood waits until the file was found to be good again.
func (w *watched) wantGood() { w.wantLog(logrus.InfoLevel, "good again") }

func (w *watched) wantLog(level logrus.Level, text string) {
	w.t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case e := <-w.logs:
			if e.Level == level && strings.Contains(e.Message, text) {
				return
			}
		case <-deadline:
			w.t.Fatalf("nothing was logged with %q in it; Err() = %v", text, w.Err())
		}
	}
}

func TestWatchFollowsTheFile(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("inv.yaml", fileWith("a"))
	w := watch(t, f.join("inv.yaml"), nil)
	w.wantRead()
	f.put("inv.yaml", fileWith("b"))
	w.wantCall("b")
	f.put("inv.yaml", fileWith("c"))
	w.wantCall("c")
	f.put("inv.yaml", fileWith())
	w.wantCall("")
	// Written in place, without a time in the past: Watch waits until the file
	// has settled.
	f.check(os.WriteFile(f.join("inv.yaml"), []byte(fileWith("d")), 0o600))
	w.wantCall("d")
	f.check(os.Remove(f.join("inv.yaml")))
	w.wantBad()
	f.put("inv.yaml", fileWith("e"))
	w.wantCall("e")
}

func TestWatchTellsRealChangesOnly(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("inv.yaml", fileWith("a"))
	w := watch(t, f.join("inv.yaml"), nil)
	w.wantRead()
	<-w.opens // that was the first look
	f.put("inv.yaml", "# another comment\n"+fileWith("a"))
	w.wantOpened()
	f.put("inv.yaml", "bad")
	w.wantBad()
	f.put("another-file", "")
	f.put("inv.yaml", fileWith("a"))
	w.wantGood()
	f.check(os.Remove(f.join("inv.yaml")))
	w.wantBad()
	f.put("inv.yaml", fileWith("a"))
	w.wantGood()
	f.put("inv.yaml", fileWith("b"))
	w.wantCall("b") // the first call of all
}

func TestWatchConfigMap(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	configMap(f, "v1", fileWith("a"))
	w := watch(t, f.join("inv.yaml"), nil)
	w.wantRead()
	configMap(f, "v2", fileWith("b"))
	w.wantCall("b")
	configMap(f, "v3", fileWith("c"))
	w.wantCall("c")
}

func TestWatchFolderComesAndGoes(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	inner := &folder{t: t, path: f.join("inner")}
	w := watch(t, inner.join("inv.yaml"), nil)
	w.wantBad() // looked, and found nothing
	for _, id := range []string{"a", "b"} {
		f.check(os.Mkdir(inner.path, 0o700))
		inner.put("inv.yaml", fileWith(id))
		w.wantCall(id)
		f.check(os.RemoveAll(inner.path))
		w.wantBad()
	}
}

// TestWatchFolderIsReplaced renames another folder into the place of the
// watched one.
func TestWatchFolderIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.check(os.Mkdir(f.join("inner"), 0o700))
	f.put("inner/inv.yaml", fileWith("a"))
	w := watch(t, f.join("inner/inv.yaml"), nil)
	w.wantRead()
	f.check(os.Mkdir(f.join("new"), 0o700))
	f.put("new/inv.yaml", fileWith("b"))
	f.check(os.Rename(f.join("inner"), f.join("old")))
	f.check(os.Rename(f.join("new"), f.join("inner")))
	w.wantCall("b")
	f.put("inner/inv.yaml", fileWith("c"))
	w.wantCall("c")
}

// TestWatchPolls changes a file that no event of the watched folder tells of.
func TestWatchPolls(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.check(os.Mkdir(f.join("elsewhere"), 0o700))
	f.check(os.Mkdir(f.join("watched"), 0o700))
	f.put(filepath.Join("elsewhere", "inv.yaml"), fileWith("a"))
	if err := os.Symlink(f.join("elsewhere/inv.yaml"), f.join("watched/inv.yaml")); err != nil {
		t.Skipf("no symbolic links here: %v", err)
	}
	w := watch(t, f.join("watched/inv.yaml"), func(s *Source) { s.timing.Poll = 5 * time.Millisecond })
	w.wantRead()
	f.put(filepath.Join("elsewhere", "inv.yaml"), fileWith("b"))
	w.wantCall("b")
}

// TestWatchBeginsLate changes the list after Devices and before Watch.
func TestWatchBeginsLate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		before func(*testing.T, *folder, *Source)
		calls  bool
	}{
		{"never asked", func(*testing.T, *folder, *Source) {}, false},
		{"asked, unchanged", func(t *testing.T, f *folder, s *Source) { wantDevices(t, s, "a") }, false},
		{"changed since", func(t *testing.T, f *folder, s *Source) {
			f.put("inv.yaml", fileWith("x"))
			wantDevices(t, s, "x")
			f.put("inv.yaml", fileWith("a"))
		}, true},
		{"changed since, and asked by somebody else", func(t *testing.T, f *folder, s *Source) {
			f.put("inv.yaml", fileWith("x"))
			wantDevices(t, s, "x")
			f.put("inv.yaml", fileWith("a"))
			wantDevices(t, s, "a")
		}, true},
		{"was not there", func(t *testing.T, f *folder, s *Source) {
			f.check(os.Remove(f.join("inv.yaml")))
			if _, err := s.Devices(t.Context()); err == nil {
				t.Error("no error without a file")
			}
			f.put("inv.yaml", fileWith("a"))
		}, true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			f.put("inv.yaml", fileWith("a"))
			w := watch(t, f.join("inv.yaml"), func(s *Source) { tc.before(t, f, s) })
			if tc.calls {
				w.wantCall("a")
			} else if tc.name == "never asked" {
				w.wantRead()
			}
			f.put("inv.yaml", fileWith("b"))
			w.wantCall("b")
		})
	}
}

// TestWatchManyChanges has changes in quick succession, some of them bad: the
// last one is always told.
func TestWatchManyChanges(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("inv.yaml", fileWith("a"))
	w := watch(t, f.join("inv.yaml"), nil)
	w.wantRead()
	for i := range 200 {
		f.put("inv.yaml", fileWith(strings.Repeat("x", i%50+1)))
		f.put("inv.yaml", "bad")
	}
	f.put("inv.yaml", fileWith("last"))
	for deadline := time.After(patience); ; {
		select {
		case got := <-w.calls:
			if got == "last" {
				return
			}
		case <-deadline:
			t.Fatal("the last version was not told")
		}
	}
}
