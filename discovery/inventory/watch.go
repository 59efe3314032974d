package inventory

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"

	"directx-nri/discovery/history"
)

// Watch calls changed after each change of the device list, until ctx ends;
// it then returns nil. It never gives up: while the file's folder is not there
// or cannot be watched, it looks at the file twice a second.
//
// No change is missed between [Source.Devices] and Watch: when the list is
// another already than the one that was answered first, changed is called at
// once. A file that turns bad changes no list and is only logged.
func (s *Source) Watch(ctx context.Context, changed func()) error {
	folder := &folderWatch{path: filepath.Dir(s.path), log: s.log}
	defer folder.close()
	folder.ensure()

	// The folder is watched from here on, so a change after this look has an
	// event.
	told := history.Since(s.state.Load().list())
	check := func() {
		st, err := s.look(ctx)
		if err != nil { // ctx has ended, which the loop sees
			return
		}
		if told.News(&st.List) {
			changed()
		}
	}
	check()

	var pending <-chan time.Time // a look is due
	next := time.NewTimer(s.pause(folder))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-folder.events():
			// Not put off by further events: a busy folder must not keep the
			// file from being read.
			if pending == nil {
				pending = time.After(s.timing.debounce)
			}
			continue
		case err := <-folder.errors():
			// Events may be lost, so look; the watch itself goes on.
			s.log.WithError(err).Debug("Watching the inventory's folder")
		case <-pending:
		case <-next.C:
		}
		pending = nil
		folder.ensure()
		check()
		next.Reset(s.pause(folder))
	}
}

func (s *Source) pause(folder *folderWatch) time.Duration {
	if folder.watched() {
		return s.timing.poll
	}
	return s.timing.search
}

// folderWatch watches the folder that now has a path: the folder and not the
// file, because a file that is replaced takes its watch with it.
type folderWatch struct {
	path    string
	log     logrus.FieldLogger
	watcher *fsnotify.Watcher // nil while nothing is watched
	info    fs.FileInfo       // the folder that watcher watches
	warned  bool
}

// ensure watches the folder if there is one and it is not watched yet: the
// path may have gone, come back, or come to name another folder.
func (w *folderWatch) ensure() {
	info, err := os.Stat(w.path)
	if err == nil && w.watcher != nil && os.SameFile(info, w.info) && len(w.watcher.WatchList()) > 0 {
		return
	}
	w.close()
	if err == nil {
		err = w.watch(info)
	}
	if err == nil {
		w.warned = false
		return
	}
	if !w.warned && !errors.Is(err, fs.ErrNotExist) {
		w.log.WithError(err).Warn("The inventory file's folder cannot be watched; the file is looked at twice a second instead")
		w.warned = true
	}
}

func (w *folderWatch) watch(info fs.FileInfo) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := watcher.Add(w.path); err != nil {
		return errors.Join(err, watcher.Close())
	}
	// On Windows a FileInfo learns which file it is about when it is first
	// compared. That must be now, and not when the path is another folder's.
	os.SameFile(info, info)
	w.watcher, w.info = watcher, info
	return nil
}

func (w *folderWatch) watched() bool { return w.watcher != nil }

// close ends the watch and the goroutine behind it.
func (w *folderWatch) close() {
	if w.watcher == nil {
		return
	}
	if err := w.watcher.Close(); err != nil {
		w.log.WithError(err).Debug("Closing the watch of the inventory's folder")
	}
	w.watcher, w.info = nil, nil
}

// events is nil, which blocks for ever, while nothing is watched.
func (w *folderWatch) events() <-chan fsnotify.Event {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Events
}

// errors is nil, which blocks for ever, while nothing is watched.
func (w *folderWatch) errors() <-chan error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Errors
}
