// Package filewatch tells when files of one folder may have changed, in place, by
// a rename over them, or as the kubelet changes a volume: by another link. It
// looks now and then without an event too, and so works, slower, where a folder
// cannot be watched or comes later.
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
	// Trouble is called when the folder cannot be watched, so that there are no
	// events. It may be nil.
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
	poll := time.NewTicker(o.Timing.Poll)
	defer poll.Stop()
	var due <-chan time.Time
	var first time.Time
	for {
		event := false
		select {
		case <-ctx.Done():
			return
		case e := <-folder.events():
			if o.Concerns != nil && !o.Concerns(e.Name) {
				continue
			}
			// Whoever writes in several steps is waited for, but not for ever.
			if due == nil {
				first = time.Now()
			}
			due = time.After(min(o.Timing.Settle, max(0, o.Timing.Most-time.Since(first))))
			continue
		case err := <-folder.errors():
			if err != nil {
				o.trouble(err)
			}
		case <-due:
			due, event = nil, true
		case <-poll.C:
		}
		folder.ensure(o.Folder, o.trouble)
		o.Look(event)
	}
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

// ensure watches the folder at path if there is one and it is not watched yet.
func (w *watch) ensure(path string, trouble func(error)) {
	info, err := os.Stat(path)
	if err == nil && w.watcher != nil && os.SameFile(info, w.info) && len(w.watcher.WatchList()) > 0 {
		return
	}
	w.close()
	if err == nil {
		err = w.begin(path, info)
	}
	if err == nil {
		w.told = false
		return
	}
	if !w.told && !errors.Is(err, fs.ErrNotExist) {
		w.told = true
		trouble(err)
	}
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
