package diversion

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

const (
	// maxRepairs is how often a [Keeper] repairs the diversion, unless that was whole for repairPeriod in between.
	maxRepairs   = 3
	repairPeriod = time.Hour
	// retestInterval is how long [Keeper.Ensure] returns the error of a self-test before it tests the program again.
	// Each test copies the program.
	retestInterval = 10 * time.Minute
)

// ErrContested means that another program replaces our shim again and again.
var ErrContested = errors.New("another program replaces our shim again and again")

// Keeper makes a diversion and keeps it while a daemon runs.
type Keeper struct {
	dir     string
	newFile string

	// find and newIn are functions of this package: [New].
	find  func() (dir string, left []string, err error)
	newIn func(dir string) *Diversion

	mutex      sync.Mutex // for what follows
	diversion  *Diversion // nil until its directory is found
	installed  bool       // by this Keeper
	repairs    int
	lastRepair time.Time
	// testErr is the error of the self-test at testedAt.
	testErr  error
	testedAt time.Time
	left     []string // directories that containerd has left, with diversions that are not undone yet
}

// NewKeeper returns a Keeper that installs the program newFile in the directory dir, as [Open] finds it.
func NewKeeper(dir, newFile string) *Keeper {
	return &Keeper{dir: dir, newFile: newFile, find: find, newIn: New}
}

// Repair puts the real shim back if there is none in its place, and reports whether it has. It also undoes the
// diversions in directories that containerd has left.
func (k *Keeper) Repair(ctx context.Context) (repaired bool, err error) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if err := k.open(); err != nil {
		return false, err
	}
	repaired, err = k.diversion.Repair()
	return repaired, errors.Join(err, k.undoLeft(ctx))
}

// Ensure makes the diversion with the first call, and makes it again with later calls when it is not whole.
// After several repairs, the error matches [ErrContested], and Ensure changes nothing until [Keeper.Undo].
func (k *Keeper) Ensure(ctx context.Context) error {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if err := k.open(); err != nil {
		return err
	}
	k.follow()
	return k.install(ctx)
}

func (k *Keeper) install(ctx context.Context) error {
	if k.installed {
		err := k.diversion.Check()
		if err == nil {
			if time.Since(k.lastRepair) > repairPeriod {
				k.repairs = 0
			}
			return nil
		}
		if k.repairs == maxRepairs {
			return errlog.WithRemedy(fmt.Errorf("%w: %w", ErrContested, err), "find out which program manages containerd's files, or set injection: kubelet")
		}
	}
	if k.testErr != nil && time.Since(k.testedAt) < retestInterval {
		return k.testErr
	}
	changed, err := k.diversion.Install(ctx, k.newFile)
	if k.testErr = nil; errors.Is(err, shimfile.ErrSelfTest) && ctx.Err() == nil {
		k.testErr, k.testedAt = err, time.Now()
	}
	if err != nil {
		return err
	}
	if k.installed && changed {
		k.repairs, k.lastRepair = k.repairs+1, time.Now()
	}
	k.installed = true
	return nil
}

// Undo undoes the diversion, also one that another process has made. If containerd is nowhere, there is none.
func (k *Keeper) Undo(ctx context.Context) error {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if err := k.open(); errors.Is(err, ErrUnknownDirectory) {
		return nil
	} else if err != nil {
		return err
	}
	k.follow()
	k.installed, k.repairs, k.testErr = false, 0, nil
	_, err := k.diversion.Remove(ctx)
	return errors.Join(err, k.undoLeft(ctx))
}

// follow changes to the directory of containerd, if that has changed: each version of RKE2 has its own.
func (k *Keeper) follow() {
	if k.dir != "" {
		return
	}
	dir, left, err := k.find()
	if err != nil {
		return // containerd may be about to start.
	}
	if old := k.diversion.Dir(); !winpath.Equal(old, dir) {
		left = appendDir(left, old)
		k.diversion, k.installed, k.repairs, k.testErr = k.newIn(dir), false, 0, nil
	}
	for _, old := range left {
		k.left = appendDir(k.left, old)
	}
	k.left = slices.DeleteFunc(k.left, func(old string) bool { return winpath.Equal(old, dir) })
}

func (k *Keeper) undoLeft(ctx context.Context) (err error) {
	k.left = slices.DeleteFunc(k.left, func(dir string) bool {
		_, removeErr := k.newIn(dir).Remove(ctx)
		err = errors.Join(err, removeErr)
		return removeErr == nil
	})
	return err
}

func (k *Keeper) open() (err error) {
	if k.diversion != nil {
		return nil
	}
	dir := k.dir
	if dir == "" {
		if dir, _, err = k.find(); err != nil {
			return err
		}
	}
	k.diversion = k.newIn(dir)
	return nil
}
