package filewatch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Data is the name of the link in a volume of Kubernetes that the kubelet swaps
// for the volume's next content.
// https://github.com/kubernetes/kubernetes/blob/v1.34.3/pkg/volume/util/atomic_writer.go
const Data = "..data"

// Timing is what a watch waits for.
type Timing struct {
	Settle time.Duration // from the last event to the look
	Most   time.Duration // from the first event to the look
	Poll   time.Duration // between looks without an event
	Search time.Duration // the same while the folder is not watched; 0 is as Poll
}

// Usual returns the timing for files that a person or the kubelet changes.
func Usual() Timing {
	return Timing{Settle: 100 * time.Millisecond, Most: time.Second, Poll: 10 * time.Second}
}

// Options say what is watched, and who is told. All calls are made by [Run], one
// after the other.
type Options struct {
	// Folder need not be there.
	Folder string
	// Concerns tells whether a change of the entry name, a path in Folder, is worth
	// a look. Without it each one is.
	Concerns func(name string) bool
	// Look is called at the start, after events, and now and then: event is false
	// when nothing is known to have changed.
	Look func(event bool)
	// Trouble is called when the folder is there and cannot be watched, so that
	// there are no events: once, until it can. It may be nil.
	Trouble func(error)
	Timing  Timing
}

// Run watches until ctx ends. It never gives up.
func Run(ctx context.Context, o Options) {
	var folder watch
	defer folder.close()
	folder.ensure(o.Folder, o.trouble)
	// What has changed between an earlier look and here has no event.
	o.Look(true)
	next := time.NewTimer(o.Timing.pause(folder))
	defer next.Stop()
	var due <-chan time.Time
	var first time.Time
	for {
		event := false
		select {
		case <-ctx.Done():
			return
		case e, open := <-folder.events():
			if open && o.Concerns != nil && !o.Concerns(e.Name) {
				continue
			}
			due, first = o.Timing.settle(due, first)
			continue
		case err := <-folder.errors():
			// Events were lost, and maybe the watch is: then it is begun anew.
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				folder.close()
			}
			due, first = o.Timing.settle(due, first)
			continue
		case <-due:
			due, event = nil, true
		case <-next.C:
		}
		// What has happened before another folder was watched has no event either.
		event = folder.ensure(o.Folder, o.trouble) || event
		o.Look(event)
		next.Reset(o.Timing.pause(folder))
	}
}

// settle returns when a look is due after an event, and when the first event was
// that it is for. Whoever writes in several steps is waited for, but not for ever.
func (t Timing) settle(due <-chan time.Time, first time.Time) (<-chan time.Time, time.Time) {
	if due == nil {
		first = time.Now()
	}
	return time.After(min(t.Settle, max(0, t.Most-time.Since(first)))), first
}

func (t Timing) pause(folder watch) time.Duration {
	if folder.watcher == nil && t.Search > 0 {
		return t.Search
	}
	return t.Poll
}

func (o Options) trouble(err error) {
	if o.Trouble != nil {
		o.Trouble(err)
	}
}

// watch is of the folder that now has the path: a file that is replaced takes a
// watch of its own with it.
type watch struct {
	watcher *fsnotify.Watcher // nil while nothing is watched
	info    fs.FileInfo
	told    bool
}

// ensure watches the folder at path if there is one and it is not watched yet. It
// tells whether another one is watched now than before, or none.
func (w *watch) ensure(path string, trouble func(error)) (another bool) {
	info, err := os.Stat(path)
	if err == nil && w.watcher != nil && os.SameFile(info, w.info) && len(w.watcher.WatchList()) > 0 {
		return false
	}
	another = w.watcher != nil
	w.close()
	if err == nil {
		err = w.begin(path, info)
	}
	if err == nil {
		w.told = false
		return true
	}
	if !w.told && !errors.Is(err, fs.ErrNotExist) {
		w.told = true
		trouble(err)
	}
	return another
}

func (w *watch) begin(path string, info fs.FileInfo) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := watcher.Add(path); err != nil {
		return errors.Join(err, watcher.Close())
	}
	// On Windows a FileInfo learns which file it is about when it is first
	// compared. That must be now.
	os.SameFile(info, info)
	w.watcher, w.info = watcher, info
	return nil
}

// close ends the watch, and the goroutine behind it.
func (w *watch) close() {
	if w.watcher != nil {
		// There is nothing to do about a watch that does not close.
		_ = w.watcher.Close()
	}
	w.watcher, w.info = nil, nil
}

// events is nil, which blocks for ever, while nothing is watched.
func (w *watch) events() <-chan fsnotify.Event {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Events
}

// errors is nil, which blocks for ever, while nothing is watched.
func (w *watch) errors() <-chan error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Errors
}
