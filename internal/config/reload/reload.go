// Package reload keeps a daemon's configuration as its file says.
//
// A file that has turned bad changes nothing: what was in force stays, and whoever
// asked is told. What cannot change while a program runs keeps its value until
// the program is started anew, and is told by its key.
package reload

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"directx-nri/internal/config"
	"directx-nri/internal/filewatch"
)

// Watcher watches a configuration file. Make one with [New].
type Watcher struct {
	options Options
	timing  filewatch.Timing
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

// New returns a watcher of the file that has made initial, the configuration that
// is in force.
func New(initial config.Config, o Options) *Watcher {
	w := &Watcher{options: o, timing: filewatch.Usual()}
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
	r := round{Watcher: w, wants: w.Current()}
	filewatch.Run(ctx, filewatch.Options{
		Folder:   filepath.Dir(w.options.File),
		Concerns: func(name string) bool { return concerns(name, w.options.File) },
		Look:     r.look, Trouble: w.options.Trouble, Timing: w.timing,
	})
	return nil
}

// concerns tells whether a change of the entry name, of the file's folder, can be
// one of the file. On Windows our logs and records are in that folder too.
func concerns(name, file string) bool {
	base := filepath.Base(name)
	return strings.EqualFold(base, filepath.Base(file)) || base == filewatch.Data
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
