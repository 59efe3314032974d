// Package diversion puts our runtime shim into the place of containerd-shim-runhcs-v1.exe on a
// Windows node, and the real one back:
//
//	containerd-shim-runhcs-v1.exe              our shim
//	directx-nri\containerd-shim-runhcs-v1.exe  the real one, which ours runs
//
// containerd looks the file up at each start of a container, so it needs no restart and no
// configuration. [Open] finds the directory, [Diversion] changes and checks it, and [Keeper] does so
// again and again for a daemon.
package diversion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

const (
	// discardTimeout bounds how long Remove waits for the starts in which our shim is about to run the real one.
	discardTimeout = 10 * time.Second
	// lockInterval is the time between attempts to get the lock.
	lockInterval = 20 * time.Millisecond
	lockTimeout  = 10 * time.Second
)

// Diversion is the diversion in one directory. Several processes can change it at once.
type Diversion struct {
	dir      string
	lockFile string
	files    fileOps
	isOurs   func(path string) (bool, error)
	selfTest func(ctx context.Context, program, dir string) error
	seen     map[string]sighting // by path
}

// sighting is what a file was when it was last read.
type sighting struct {
	info fs.FileInfo
	kind kind
}

// Open returns the diversion in dir, the directory from which containerd runs the runhcs shim. If dir is "", it
// is found: the error matches [ErrUnknownDirectory] or [ErrSeveralDirectories] if the caller must name it.
func Open(dir string) (*Diversion, error) {
	if dir != "" {
		return New(dir), nil
	}
	dir, _, err := find()
	if err != nil {
		return nil, err
	}
	return New(dir), nil
}

// New returns the diversion in dir.
func New(dir string) *Diversion {
	return &Diversion{
		dir: dir, lockFile: filepath.Join(paths.Default().State, paths.DiversionLockFile),
		files: systemOps(), isOurs: isOurs, selfTest: shimfile.SelfTest, seen: map[string]sighting{},
	}
}

// Dir returns the directory of the diversion.
func (d *Diversion) Dir() string { return d.dir }

// place returns the path that containerd runs.
func (d *Diversion) place() string { return filepath.Join(d.dir, paths.Runhcs) }

// real returns the path of the real shim while it is diverted.
func (d *Diversion) real() string { return paths.RealShim(d.dir) }

// workDir is the directory of the real shim, and of files that are about to be placed or deleted.
func (d *Diversion) workDir() string { return filepath.Join(d.dir, paths.RealShimDir) }

// Check returns nil if containerd runs our shim and ours can run the real one. Otherwise its error matches
// [ErrNotDiverted], [ErrInterrupted], [ErrBroken] or [ErrNoShim], or the files cannot be read. While nothing
// changes, it costs the metadata of two files.
func (d *Diversion) Check() error {
	s, err := d.inspect()
	if err == nil {
		err = check(s)
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", d.dir, err)
	}
	return nil
}

// Install makes the diversion with a copy of the program newFile, after its self-test has passed, and
// reports whether containerd runs another program now. If the diversion exists, Install repairs it and
// replaces our shim if newFile differs. The error matches [shimfile.ErrSelfTest] if the
// self-test fails, and [ErrBroken] or [ErrNoShim] if a file of containerd is missing; nothing has changed then.
func (d *Diversion) Install(ctx context.Context, newFile string) (changed bool, err error) {
	if err := d.Check(); errors.Is(err, ErrBroken) || errors.Is(err, ErrNoShim) {
		return false, err
	}
	if _, err := d.Repair(); err != nil { // What follows takes time.
		return false, err
	}
	return d.change(ctx, "install the runtime shim in", func() (bool, error) {
		staged, err := d.stage(ctx, newFile)
		if err != nil {
			return false, err
		}
		s, err := d.inspect() // The self-test took time.
		if err != nil {
			return false, err
		}
		switch err := check(s); {
		case err != nil && !errors.Is(err, ErrNotDiverted):
			return false, err
		case s.place == ours:
			same, err := sameContent(staged, d.place())
			if err != nil || same {
				return false, err
			}
			return true, d.exchange(staged, d.unique(oursPrefix))
		}
		if s.real == foreign { // The one that another program has put in our shim's place is newer.
			if err := d.files.rename(d.real(), d.unique(asidePrefix)); err != nil {
				return false, err
			}
		}
		if err := d.linkCompanions(); err != nil {
			return false, fmt.Errorf("link what the real shim looks for beside itself: %w", err)
		}
		return true, d.exchange(staged, d.real())
	})
}

// Remove undoes the diversion and reports whether containerd runs another program now. The moved real shim is
// deleted unless containers run from it; then the next Install or Remove deletes it.
func (d *Diversion) Remove(ctx context.Context) (changed bool, err error) {
	if err := d.Check(); errors.Is(err, ErrBroken) {
		return false, err
	}
	if !durable.Exists(d.workDir()) {
		return false, nil
	}
	return d.change(ctx, "remove the runtime shim from", func() (bool, error) {
		s, err := d.inspect()
		if err != nil || s.real != foreign {
			return false, err
		}
		if s.place != foreign {
			if err := d.restore(s.place); err != nil {
				return false, err
			}
		}
		d.discardReal(ctx)
		return s.place != foreign, nil
	})
}

// Repair puts the real shim back if there is none in its place, and reports whether it has: no container starts
// without either. It needs nothing but the directory: if another process changes the diversion just then, that fails, and
// its caller tries again.
func (d *Diversion) Repair() (repaired bool, err error) {
	if err := d.Check(); !errors.Is(err, ErrInterrupted) {
		return false, nil
	}
	if err := d.restore(absent); err != nil {
		return false, fmt.Errorf("put the real shim back in %s: %w", d.dir, err)
	}
	return true, nil
}

// restore puts the real shim back. It copies it, because our shim is about to run the real one in the starts in flight.
// If the disk is full, or no container could start meanwhile, the real shim gets a second name.
func (d *Diversion) restore(place kind) error {
	if place == absent && d.files.link(d.real(), d.place()) == nil {
		return nil
	}
	again := filepath.Join(d.dir, tempPrefix+filepath.Base(d.unique("")))
	if err := d.files.copy(d.real(), again); err != nil {
		if linkErr := errors.Join(d.files.remove(again), d.files.link(d.real(), again)); linkErr != nil {
			return errors.Join(err, linkErr)
		}
	}
	if place == absent {
		return d.files.rename(again, d.place())
	}
	return d.exchange(again, d.unique(oursPrefix))
}

// change runs do while no other process changes the diversion.
func (d *Diversion) change(ctx context.Context, action string, do func() (changed bool, err error)) (changed bool, err error) {
	defer func() {
		if err != nil {
			changed, err = false, fmt.Errorf("%s %s: %w", action, d.dir, err)
		}
	}()
	// It need not be private: [Diversion.stage] checks that of what it needs, and the rest undoes changes.
	if err := os.MkdirAll(filepath.Dir(d.lockFile), 0o700); err != nil {
		return false, err
	}
	lockCtx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	lock := flock.New(d.lockFile, flock.SetPermissions(0o600), flock.SetFlag(os.O_CREATE|os.O_RDWR))
	if _, err := lock.TryLockContext(lockCtx, lockInterval); err != nil {
		return false, fmt.Errorf("wait for other processes that change it: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	defer func() {
		_ = d.cleanUp() // What runs is deleted by a later call.
		_ = os.Remove(d.workDir())
	}()
	// Others must not choose the program that is put back.
	if err := access.CreatePrivate(d.workDir()); err != nil {
		return false, err
	}
	return do()
}

// inspect returns the state of the directory. Another process can change it meanwhile, so place is read again after real.
func (d *Diversion) inspect() (s state, _ error) {
	const attempts = 10
	for range attempts {
		place, err := d.look(d.place())
		moved, movedErr := d.look(d.real())
		again, againErr := d.look(d.place())
		if err := errors.Join(err, movedErr, againErr); err != nil {
			return state{}, err
		}
		if s = (state{again, moved}); place == again {
			break
		}
	}
	return s, nil
}

// look returns what the file at path is. It reads the file only if it has changed.
func (d *Diversion) look(path string) (kind, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return absent, nil
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	last, ok := d.seen[path]
	// Windows looks the identity of info up now, by its path, and keeps it.
	if same := os.SameFile(info, info); ok && same && os.SameFile(info, last.info) &&
		info.Size() == last.info.Size() && info.ModTime().Equal(last.info.ModTime()) {
		return last.kind, nil
	}
	now := sighting{info, foreign}
	isOurs, err := d.isOurs(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return absent, nil
	case err != nil:
		return "", err
	case isOurs:
		now.kind = ours
	}
	d.seen[path] = now
	return now.kind, nil
}

func sameContent(a, b string) (bool, error) {
	first, err := os.ReadFile(a)
	second, secondErr := os.ReadFile(b)
	return bytes.Equal(first, second), errors.Join(err, secondErr)
}
