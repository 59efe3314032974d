// Package diversion puts our runtime shim into the place of containerd-shim-runhcs-v1.exe on a
// Windows node, and the real one back:
//
//	containerd-shim-runhcs-v1.exe              our shim
//	directx-nri\containerd-shim-runhcs-v1.exe  the real one, which ours runs
//
// containerd looks the file up at each start of a container, so it needs no restart and no
// configuration. [Find] finds the directory, [Diversion] changes and checks it, and [Keeper] does so
// again and again for a daemon. What is done in which state is in plan.go.
package diversion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// discardTimeout bounds how long Remove waits for the starts in which our shim is about to run the real one.
const discardTimeout = 10 * time.Second

// Diversion is the diversion in one directory. Its methods may be called concurrently, and by several
// processes.
type Diversion struct {
	dir      string
	files    fileOps
	isOurs   func(path string) (bool, error)
	selfTest func(ctx context.Context, program, dir string) error

	mu   sync.Mutex
	seen map[string]sighting // by path
}

// sighting is what a file was when it was last read.
type sighting struct {
	info fs.FileInfo
	kind kind
}

// New returns the diversion in dir, the directory from which containerd runs the runhcs shim.
func New(dir string) *Diversion {
	return &Diversion{dir: dir, files: systemOps(), isOurs: isOurs, selfTest: shimfile.SelfTest, seen: map[string]sighting{}}
}

// Dir returns the directory of the diversion.
func (d *Diversion) Dir() string { return d.dir }

// place is the path that containerd runs, real that of the real shim while it is diverted.
func (d *Diversion) place() string { return filepath.Join(d.dir, paths.Runhcs) }
func (d *Diversion) real() string  { return paths.RealShim(d.dir) }

// workDir is the directory of the real shim, and of files that are about to be placed or deleted.
func (d *Diversion) workDir() string { return filepath.Join(d.dir, paths.RealShimDir) }

// Check returns nil if containerd runs our shim and ours can run the real one. Otherwise its error matches
// [ErrNotDiverted], [ErrOverwritten], [ErrInterrupted], [ErrBroken] or [ErrNoShim], or the files cannot
// be read. While nothing changes, it costs the metadata of two files.
func (d *Diversion) Check() error {
	s, err := d.inspect()
	if err == nil {
		err = check(s)
	}
	return d.wrap("check", err)
}

// Install makes the diversion with a copy of the program newFile, after its self-test has passed, and
// reports whether containerd runs another program now. If the diversion exists, Install repairs it and
// replaces our shim if newFile differs. The error matches [shimfile.ErrSelfTest] if the
// self-test fails, and [ErrBroken] or [ErrNoShim] if a file of containerd is missing; nothing has changed then.
func (d *Diversion) Install(ctx context.Context, newFile string) (changed bool, err error) {
	defer func() { err = d.wrap("install the runtime shim", err) }()
	if _, err := d.plan(planInstall); err != nil {
		return false, err
	}
	unlock, err := d.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	defer func() { _ = d.cleanUp() }() // What runs is deleted by a later call.
	staged, err := d.stage(ctx, newFile)
	if err != nil {
		return false, err
	}
	steps, err := d.plan(planInstall) // Another process may have changed the files.
	if err != nil {
		return false, err
	}
	for _, s := range steps {
		stepChanged, err := d.installStep(s, staged)
		if err != nil {
			return changed, err
		}
		changed = changed || stepChanged
	}
	return changed, nil
}

// Remove undoes the diversion and reports whether containerd runs another program now. The moved real shim
// is deleted unless containers run from it; then the next Install or Remove deletes it.
func (d *Diversion) Remove(ctx context.Context) (changed bool, err error) {
	defer func() { err = d.wrap("remove the runtime shim", err) }()
	if _, err := d.plan(planRemove); err != nil || !durable.Exists(d.workDir()) {
		return false, err
	}
	unlock, err := d.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	defer func() { _ = d.cleanUp() }() // What runs is deleted by a later call.
	steps, err := d.plan(planRemove)
	if err != nil {
		return false, err
	}
	for _, s := range steps {
		stepChanged, err := d.removeStep(ctx, s)
		if err != nil {
			return changed, err
		}
		changed = changed || stepChanged
	}
	return changed, nil
}

func (d *Diversion) installStep(s step, staged string) (changed bool, err error) {
	switch s {
	case setAside:
		return false, d.files.rename(d.real(), d.unique(asidePrefix))
	case divert:
		if err := d.linkCompanions(); err != nil {
			return false, fmt.Errorf("link what the real shim looks for beside itself: %w", err)
		}
		return true, d.exchange(staged, d.real(), asidePrefix)
	case update:
		same, err := sameContent(staged, d.place())
		if err != nil || same {
			return false, err
		}
		return true, d.exchange(staged, d.unique(oursPrefix), oursPrefix)
	default: // place
		return true, d.files.rename(staged, d.place())
	}
}

func (d *Diversion) removeStep(ctx context.Context, s step) (changed bool, err error) {
	if s == discard {
		d.discardReal(ctx)
		return false, nil
	}
	temp := filepath.Join(d.dir, tempPrefix+filepath.Base(d.unique("")))
	if err := d.files.copy(d.real(), temp); err != nil {
		return false, err
	}
	if s == recreate {
		return true, d.files.rename(temp, d.place())
	}
	return true, d.exchange(temp, d.unique(oursPrefix), oursPrefix)
}

// plan returns the steps of install or remove in the present state.
func (d *Diversion) plan(steps func(state) ([]step, error)) ([]step, error) {
	s, err := d.inspect()
	if err != nil {
		return nil, err
	}
	return steps(s)
}

// inspect returns the state of the directory. Another process can change it meanwhile, so place is read again after real.
func (d *Diversion) inspect() (state, error) {
	const attempts = 10
	d.mu.Lock()
	defer d.mu.Unlock()
	var s state
	for range attempts {
		place, err := d.look(d.place())
		moved, movedErr := d.look(d.real())
		again, againErr := d.look(d.place())
		if err := errors.Join(err, movedErr, againErr); err != nil {
			return state{}, err
		}
		s = state{place: place.kind, real: moved.kind}
		if place.kind == foreign && moved.kind == foreign {
			s.leftover = place.info.Size() == moved.info.Size() && place.info.ModTime().Equal(moved.info.ModTime())
		}
		if place.kind == again.kind && (place.kind == absent || os.SameFile(place.info, again.info)) {
			break
		}
	}
	return s, nil
}

// look returns what the file at path is. It reads the file only if it has changed.
func (d *Diversion) look(path string) (sighting, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sighting{kind: absent}, nil
	case err != nil:
		return sighting{}, err
	case !info.Mode().IsRegular():
		return sighting{}, fmt.Errorf("%s is not a regular file", path)
	}
	last, ok := d.seen[path]
	// Windows looks the identity of info up now, by its path, and keeps it.
	if same := os.SameFile(info, info); ok && same && os.SameFile(info, last.info) &&
		info.Size() == last.info.Size() && info.ModTime().Equal(last.info.ModTime()) {
		return last, nil
	}
	now := sighting{info, foreign}
	isOurs, err := d.isOurs(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sighting{kind: absent}, nil
	case err != nil:
		return sighting{}, err
	}
	if isOurs {
		now.kind = ours
	}
	d.seen[path] = now
	return now, nil
}

func (d *Diversion) wrap(action string, err error) error {
	if err != nil {
		return fmt.Errorf("%s in %s: %w", action, d.dir, err)
	}
	return nil
}

func sameContent(a, b string) (bool, error) {
	first, err := os.ReadFile(a)
	second, secondErr := os.ReadFile(b)
	return bytes.Equal(first, second), errors.Join(err, secondErr)
}
