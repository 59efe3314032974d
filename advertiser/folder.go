package advertiser

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
)

// folderWatch tells of changes to some files of a folder that may not exist
// yet, and may be removed and made again.
type folderWatch struct {
	folder string
	// doors are who is told. Their sockets and the kubelet's are the files that
	// matter: the kubelet also keeps files there that it writes at every
	// allocation.
	doors *doors
	poll  time.Duration
	log   logrus.FieldLogger
}

// run watches until ctx ends. Where it cannot watch it says so and goes on
// trying: everybody who is nudged also looks from time to time unasked.
func (w folderWatch) run(ctx context.Context) {
	trouble := ""
	for ctx.Err() == nil {
		err := w.watch(ctx)
		if err != nil && ctx.Err() == nil && !os.IsNotExist(err) && err.Error() != trouble {
			trouble = err.Error()
			w.log.WithError(err).WithField("folder", w.folder).Warn("cannot watch the kubelet's folder, looking at it from time to time instead; is fs.inotify.max_user_instances too small?")
		}
		timer := time.NewTimer(w.poll)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// watch watches the folder as it is now, until it is gone or replaced.
func (w folderWatch) watch(ctx context.Context) error {
	before, err := os.Stat(w.folder)
	if err != nil {
		return err
	}
	// On Windows a FileInfo learns which file it is about when it is first
	// compared. That must be now, and not when the path is another folder's.
	os.SameFile(before, before)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(w.folder); err != nil {
		return err
	}
	// What happened before the watch began told nobody.
	w.doors.nudge()
	ticker := time.NewTicker(w.poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-watcher.Events:
			if !ok {
				return nil
			}
			if name := filepath.Base(event.Name); name == kubeletSocket || w.doors.has(name) {
				w.doors.nudge()
			}
		case err, ok := <-watcher.Errors:
			if !ok {
				return nil
			}
			w.log.WithError(err).Debug("events of the kubelet's folder were lost")
			w.doors.nudge()
		case <-ticker.C:
			now, err := os.Stat(w.folder)
			if err != nil || !os.SameFile(before, now) {
				return err
			}
		}
	}
}
