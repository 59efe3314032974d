// Package reload keeps a daemon's configuration as its file says.
//
// A file that has turned bad changes nothing: what was in force stays, and whoever
// asked is told. What cannot change while a program runs keeps its value until
// the program is started anew, and is told by its key.
package reload

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"directx-nri/internal/config"
)

// Watcher watches a configuration file. Make one with [New].
type Watcher struct {
	options Options
	timing  timing
	current atomic.Pointer[config.Config]
}

// Options say what a [Watcher] watches, and who is told. All calls are made by
// [Watcher.Run], one after the other.
type Options struct {
	// File is the configuration file's path. It need not be there.
	File string
	// Read reads the configuration with all that counts more than the file.
	Read func() (config.Config, error)
	// Changed is called with what is now in force and what was before, and not
	// when both are the same.
	Changed func(now, before config.Config)
	// Refused is called when the file has turned bad, once for each way in which
	// it is.
	Refused func(error)
	// Accepted is called when a file was read and is good, whether it changes
	// anything or not, and at the start of Run.
	Accepted func()
	// Pending is called with the keys of those settings that have other values
	// now, and take the program's restart; without any when there were some and
	// there are none any more.
	Pending func(keys []string)
	// Trouble is called when the file's folder cannot be watched, so that the file
	// is only looked at now and then.
	Trouble func(error)
}

// timing is what the watcher waits for.
type timing struct {
	settle time.Duration // from the last event to the reading
	most   time.Duration // from the first event to the reading
	poll   time.Duration // between looks without an event
}

// New returns a watcher of the file that has made initial, the configuration that
// is in force.
func New(initial config.Config, o Options) *Watcher {
	w := &Watcher{options: o, timing: timing{settle: 100 * time.Millisecond, most: time.Second, poll: 10 * time.Second}}
	w.current.Store(&initial)
	return w
}

// Current returns the configuration that is in force. Any number may call it at
// any time.
func (w *Watcher) Current() config.Config { return *w.current.Load() }

// Run watches until ctx ends and then returns nil. It never gives up: as long as
// the folder cannot be watched, or is not there, it looks at the file every ten
// seconds.
func (w *Watcher) Run(ctx context.Context) error {
	var folder folderWatch
	defer folder.close()
	folder.ensure(filepath.Dir(w.options.File), w.options.Trouble)
	r := round{Watcher: w, wants: w.Current()}
	// What has changed between the first reading and here has no event.
	r.look(true)
	poll := time.NewTicker(w.timing.poll)
	defer poll.Stop()
	var due <-chan time.Time
	var first time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-folder.events():
			if !concerns(event.Name, w.options.File) {
				continue
			}
			// Whoever writes in several steps is waited for, but not for ever.
			if due == nil {
				first = time.Now()
			}
			due = time.After(min(w.timing.settle, max(0, w.timing.most-time.Since(first))))
			continue
		case err := <-folder.errors():
			w.trouble(err)
		case <-due:
			due = nil
			folder.ensure(filepath.Dir(w.options.File), w.options.Trouble)
			r.look(true)
			continue
		case <-poll.C:
		}
		folder.ensure(filepath.Dir(w.options.File), w.options.Trouble)
		r.look(false)
	}
}

// concerns tells whether a change of the entry name, of the file's folder, can be
// one of the file. On Windows our logs and records are in that folder too. The
// link that the kubelet swaps for a volume's next content is ..data.
// https://github.com/kubernetes/kubernetes/blob/v1.34.3/pkg/volume/util/atomic_writer.go
func concerns(name, file string) bool {
	base := filepath.Base(name)
	return strings.EqualFold(base, filepath.Base(file)) || base == "..data"
}

func (w *Watcher) trouble(err error) {
	if w.options.Trouble != nil && err != nil {
		w.options.Trouble(err)
	}
}

// round is what a run remembers.
type round struct {
	*Watcher
	stamp   stamp
	seen    bool
	refused string
	// wants is what the file says, which differs from what is in force by what
	// takes a restart.
	wants   config.Config
	pending []string
}

// look reads the file when it may be another one. Without an event the file's
// stamp tells.
func (r *round) look(event bool) {
	now := stampOf(r.options.File)
	if r.seen && !event && now == r.stamp {
		return
	}
	r.stamp, r.seen = now, true
	next, err := r.options.Read()
	if err != nil {
		if r.refused != err.Error() {
			r.refused = err.Error()
			if r.options.Refused != nil {
				r.options.Refused(err)
			}
		}
		return
	}
	r.refused = ""
	if r.options.Accepted != nil {
		r.options.Accepted()
	}
	if reflect.DeepEqual(next, r.wants) {
		return
	}
	r.wants = next
	before := r.Current()
	inForce, keys := config.KeepUntilRestart(next, before)
	if !reflect.DeepEqual(keys, r.pending) {
		r.pending = keys
		if r.options.Pending != nil {
			r.options.Pending(keys)
		}
	}
	if reflect.DeepEqual(inForce, before) {
		return
	}
	r.current.Store(&inForce)
	if r.options.Changed != nil {
		r.options.Changed(inForce, before)
	}
}

// stamp tells versions of a file apart. A ConfigMap's file is reached through
// links that are swapped: where they lead tells as much as the file's time.
type stamp struct {
	target  string
	size    int64
	changed time.Time
	missing bool
}

func stampOf(path string) stamp {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return stamp{missing: true}
	}
	info, err := os.Stat(target)
	if err != nil {
		return stamp{missing: true}
	}
	return stamp{target: target, size: info.Size(), changed: info.ModTime()}
}

// folderWatch watches the folder that now has the path: a file that is replaced
// takes a watch of its own with it.
type folderWatch struct {
	watcher *fsnotify.Watcher // nil while nothing is watched
	info    fs.FileInfo
	told    bool
}

// ensure watches the folder at path if there is one and it is not watched yet.
func (f *folderWatch) ensure(path string, trouble func(error)) {
	info, err := os.Stat(path)
	if err == nil && f.watcher != nil && os.SameFile(info, f.info) && len(f.watcher.WatchList()) > 0 {
		return
	}
	f.close()
	if err == nil {
		err = f.watch(path, info)
	}
	if err == nil {
		f.told = false
		return
	}
	if !f.told && !errors.Is(err, fs.ErrNotExist) && trouble != nil {
		f.told = true
		trouble(err)
	}
}

func (f *folderWatch) watch(path string, info fs.FileInfo) error {
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
	f.watcher, f.info = watcher, info
	return nil
}

// close ends the watch, and the goroutine behind it.
func (f *folderWatch) close() {
	if f.watcher != nil {
		// There is nothing to do about a watch that does not close.
		_ = f.watcher.Close()
	}
	f.watcher, f.info = nil, nil
}

// events is nil, which blocks for ever, while nothing is watched.
func (f *folderWatch) events() <-chan fsnotify.Event {
	if f.watcher == nil {
		return nil
	}
	return f.watcher.Events
}

// errors is nil, which blocks for ever, while nothing is watched.
func (f *folderWatch) errors() <-chan error {
	if f.watcher == nil {
		return nil
	}
	return f.watcher.Errors
}
