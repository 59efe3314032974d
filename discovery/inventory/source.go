package inventory

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"directx-nri/discovery"
	"directx-nri/discovery/history"
	"directx-nri/internal/filewatch"

	"github.com/sirupsen/logrus"
)

// Source lists the devices of an inventory file. Make one with [Open].
type Source struct {
	path   string
	log    logrus.FieldLogger
	reader reader
	timing filewatch.Timing

	// state is what is known of the file, nil before the first look. It is
	// replaced and never changed, so reading it takes no lock.
	state atomic.Pointer[state]
	// reading holds one token: who has it reads the file.
	reading chan struct{}
}

var _ discovery.Source = (*Source)(nil)

// state is one look at the file.
type state struct {
	// stamp is the version that was read, nil when the file must be read again
	// whatever its stamp.
	stamp fs.FileInfo
	// List's Err is why the file's present content is not in force.
	history.List
}

// Open returns a source of the inventory file at path. It does not touch the
// file yet, which need not be there. The path is taken from the present
// working folder.
func Open(path string, log logrus.FieldLogger) *Source {
	// Without a working folder the relative path is as good as any.
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return &Source{
		path:   path,
		log:    log.WithField("inventory", path),
		reader: newReader(path),
		// Without an event, too: a link may lead into another folder. A busy folder
		// does not put a look off.
		timing:  filewatch.Timing{Settle: 50 * time.Millisecond, Most: 50 * time.Millisecond, Poll: 500 * time.Millisecond},
		reading: make(chan struct{}, 1),
	}
}

// Devices returns the devices that the file lists now, as copies. It looks at
// the file each time and reads it when it has changed; a file that was written
// a moment ago it reads again until that has settled, half a second at most.
//
// While the file cannot be read or has errors, the answer is its last good
// list; [Source.Err] and the log then say why. It is an error if there never
// was a good list, or when ctx ended while the file was being read.
func (s *Source) Devices(ctx context.Context) ([]discovery.Device, error) {
	st, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	return st.Answer()
}

// Find implements [discovery.Source].
func (s *Source) Find(ctx context.Context, instanceIDs []string) ([]discovery.Device, error) {
	devices, err := s.Devices(ctx)
	return discovery.Select(devices, instanceIDs), err
}

// Err returns why the file's present content, as of the last look at it, is
// not in force, and nil when it is. [Problems] are found in it with errors.As.
func (s *Source) Err() error {
	if st := s.state.Load(); st != nil {
		return st.Err
	}
	return nil
}

// look returns the state of the file now. The error is that of ctx.
func (s *Source) look(ctx context.Context) (*state, error) {
	if st := s.state.Load(); s.fresh(st) {
		return st, nil
	}
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return nil, fmt.Errorf("read inventory %s: %w", s.path, context.Cause(ctx))
	}
	old := s.state.Load()
	if s.fresh(old) { // another has just read it
		return old, nil
	}
	data, stamp, err := s.reader.read(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("read inventory %s: %w", s.path, context.Cause(ctx))
	}
	var devices []discovery.Device
	if err != nil {
		err = fmt.Errorf("read inventory %s: %w", s.path, err)
	} else if devices, err = Parse(s.path, data); err != nil {
		err = fmt.Errorf("inventory has errors: %w", err)
	}
	next := &state{stamp: stamp, List: old.list().Next(devices, err)}
	s.tell(old, next)
	s.state.Store(next)
	return next, nil
}

// fresh tells whether the file is still the one that st was made from.
func (s *Source) fresh(st *state) bool {
	if st == nil || st.stamp == nil {
		return false
	}
	info, err := os.Stat(s.path)
	return err == nil && sameVersion(info, st.stamp)
}

// list returns what st knows of the devices, nil before the first look.
func (st *state) list() *history.List {
	if st == nil {
		return nil
	}
	return &st.List
}

// tell logs what has changed from one look to the next.
func (s *Source) tell(old, next *state) {
	log := s.log.WithField("devices", len(next.Devices))
	switch {
	case next.Err != nil:
		if old != nil && old.Err != nil && old.Err.Error() == next.Err.Error() && sameStamp(old.stamp, next.stamp) {
			return
		}
		if next.Generation == 0 {
			log.WithError(next.Err).Error("The inventory file cannot be used and there are no devices; correct it, it is read again by itself")
		} else {
			log.WithError(next.Err).Error("The inventory file cannot be used and its last good list stays in force; correct it, it is read again by itself")
		}
	case old == nil:
		log.Info("Read the inventory file")
	case old.Err != nil:
		log.Info("The inventory file is good again")
	case old.Generation != next.Generation:
		log.Info("The inventory file has changed")
	}
}

// sameStamp tells whether two looks found the same version, or both none.
func sameStamp(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return sameVersion(a, b)
}
