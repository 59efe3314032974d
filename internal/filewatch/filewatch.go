// Package filewatch watches files, including those of Kubernetes volumes, which the
// kubelet changes through a symbolic link.
package filewatch

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// dataLink is the link in a Kubernetes volume that the kubelet points to new content.
// https://github.com/kubernetes/kubernetes/blob/v1.34.3/pkg/volume/util/atomic_writer.go
const dataLink = "..data"

// Options are what [Watch] watches.
type Options struct {
	// Files are paths whose last element can be a pattern of [filepath.Match].
	// Neither the files nor their directories need to exist.
	Files []string
	// Debounce is the time from an event to the call, for files that are written in
	// several steps. Interval is the time between calls without events.
	Debounce, Interval time.Duration
	// Failed, if not nil, is called once if an existing directory cannot be watched,
	// so that only Interval is left.
	Failed func(error)
}

// Watch calls changed at the start, after each change of the files, and after each
// interval, until ctx ends.
func Watch(ctx context.Context, o Options, changed func()) {
	w := watcher{Options: o, dirs: map[string]fs.FileInfo{}}
	var events <-chan fsnotify.Event
	var lost <-chan error
	if notify, err := fsnotify.NewWatcher(); err != nil {
		w.failed(err)
	} else {
		defer func() { _ = notify.Close() }()
		w.notify, events, lost = notify, notify.Events, notify.Errors
		for _, file := range o.Files {
			w.dirs[filepath.Dir(file)] = nil
		}
	}
	ticker := time.NewTicker(o.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		// In this order, so that no change in between is missed.
		w.refresh()
		changed()
		for wait, due := true, (<-chan time.Time)(nil); wait; {
			event := false
			select {
			case <-ctx.Done():
				return
			case e := <-events:
				event = w.isWatched(e.Name)
			case <-lost: //nolint:errcheck // Whatever the error is, events may be missing.
				event = true
			case <-due:
				wait = false
			case <-ticker.C:
				wait = false
			}
			if event && due == nil {
				due = time.After(o.Debounce)
			}
		}
	}
}

type watcher struct {
	Options
	notify *fsnotify.Watcher
	dirs   map[string]fs.FileInfo // nil for a directory that is not watched
}

func (w *watcher) failed(err error) {
	if w.Failed != nil {
		w.Failed(err)
		w.Failed = nil
	}
}

// isWatched reports whether a change of path can change one of the files.
func (w *watcher) isWatched(path string) bool {
	base := filepath.Base(path)
	return base == dataLink || slices.ContainsFunc(w.Files, func(file string) bool {
		pattern := filepath.Base(file)
		matched, err := filepath.Match(pattern, base)
		return matched && err == nil || strings.EqualFold(pattern, base)
	})
}

// refresh watches the directories that now have the paths. A directory that was
// replaced takes its watch with it.
func (w *watcher) refresh() {
	for dir, watched := range w.dirs {
		info, err := os.Stat(dir)
		if err == nil && watched != nil && os.SameFile(info, watched) && slices.Contains(w.notify.WatchList(), dir) {
			continue
		}
		_ = w.notify.Remove(dir) // It may be gone already.
		w.dirs[dir] = nil
		if err != nil {
			continue
		}
		if err := w.notify.Add(dir); err != nil {
			w.failed(err)
			continue
		}
		os.SameFile(info, info) // Makes info keep the file's identity on Windows.
		w.dirs[dir] = info
	}
}
