// Package filewatch watches configuration files, including those of Kubernetes
// volumes, which the kubelet changes through a symbolic link.
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

// Watch calls changed at the start, after each change of the files, and every 10
// seconds, until ctx ends. Neither the files nor their directories need to exist.
func Watch(ctx context.Context, files []string, changed func()) {
	w := watcher{debounce: 200 * time.Millisecond, interval: 10 * time.Second}
	w.run(ctx, files, changed)
}

type watcher struct {
	// debounce is the time from an event to the call, for files that are written in
	// several steps; interval is the time between calls without events.
	debounce, interval time.Duration

	notify *fsnotify.Watcher
	dirs   map[string]fs.FileInfo // nil for a directory that is not watched
}

func (w *watcher) run(ctx context.Context, files []string, changed func()) {
	var events <-chan fsnotify.Event
	var lost <-chan error
	w.dirs = map[string]fs.FileInfo{}
	if notify, err := fsnotify.NewWatcher(); err == nil { // Otherwise there is the interval.
		defer func() { _ = notify.Close() }()
		w.notify, events, lost = notify, notify.Events, notify.Errors
		for _, file := range files {
			w.dirs[filepath.Dir(file)] = nil
		}
	}
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	var due <-chan time.Time
	for {
		// In this order, so that no change in between is missed.
		w.refresh()
		changed()
		for due = nil; ; {
			select {
			case <-ctx.Done():
				return
			case e := <-events:
				if due == nil && concerns(files, e.Name) {
					due = time.After(w.debounce)
				}
				continue
			case <-lost: //nolint:errcheck // Whatever the error is, events may be missing.
				if due == nil {
					due = time.After(w.debounce)
				}
				continue
			case <-due:
			case <-ticker.C:
			}
			break
		}
	}
}

// concerns reports whether a change of path can change one of files.
func concerns(files []string, path string) bool {
	base := filepath.Base(path)
	return base == dataLink || slices.ContainsFunc(files, func(file string) bool { return strings.EqualFold(filepath.Base(file), base) })
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
		if err == nil && w.notify.Add(dir) == nil {
			os.SameFile(info, info) // Makes info keep the file's identity on Windows.
			w.dirs[dir] = info
		}
	}
}
