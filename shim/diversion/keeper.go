package diversion

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

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

// Keeper makes a diversion and keeps it while a daemon runs. [Keeper.Repair] can be called while another method runs.
type Keeper struct {
	newFile string
	log     logrus.FieldLogger
	// find returns the directory, and those that containerd has left.
	find  func() (dir string, left []string, err error)
	newIn func(dir string) *Diversion // [New]

	mutex sync.Mutex
	dir   string // "" until it is found, guarded by mutex

	// Repair's.
	repairer  *Diversion
	isMissing bool // at the last call

	// Ensure's and Undo's.
	diversion  *Diversion
	installed  bool // by this Keeper
	repairs    int
	lastRepair time.Time
	// testErr is the error of the self-test at testedAt.
	testErr  error
	testedAt time.Time
	left     []string // directories that containerd has left, with diversions that are not undone yet
	leftErr  errlog.LastError
}

// NewKeeper returns a Keeper that installs the program newFile in the directory dir, as [Open] finds it.
func NewKeeper(dir, newFile string, log logrus.FieldLogger) *Keeper {
	k := &Keeper{newFile: newFile, log: log, find: find, newIn: New}
	if dir != "" {
		k.find = func() (string, []string, error) { return dir, nil, nil }
	}
	return k
}

// directory returns the directory that was found last, or now.
func (k *Keeper) directory() (dir string, err error) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if k.dir == "" {
		k.dir, _, err = k.find()
	}
	return k.dir, err
}

// Repair puts the real shim back, and reports whether it has, if there is none in its place now and with the last call:
// a change that goes on takes less time than that. It waits for nothing.
func (k *Keeper) Repair() (repaired bool, err error) {
	dir, err := k.directory()
	if err != nil {
		return false, nil // Ensure returns it, where a GPU is offered.
	}
	if k.repairer == nil || k.repairer.Dir() != dir {
		k.repairer = k.newIn(dir)
	}
	wasMissing := k.isMissing
	if k.isMissing = errors.Is(k.repairer.Check(), ErrInterrupted); !k.isMissing || !wasMissing {
		return false, nil
	}
	return k.repairer.Repair()
}

// Ensure makes the diversion with the first call, and makes it again with later calls when it is not whole.
// After several repairs, the error matches [ErrContested], and Ensure changes nothing until [Keeper.Undo]. It also
// undoes the diversions in directories that containerd has left.
func (k *Keeper) Ensure(ctx context.Context) error {
	if err := k.follow(); err != nil {
		return err
	}
	k.undoLeft(ctx)
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

// Undo undoes the diversion, also one that another process has made. If containerd's directory is unknown, there is none.
func (k *Keeper) Undo(ctx context.Context) error {
	err := k.follow()
	if errors.Is(err, ErrUnknownDirectory) || errors.Is(err, ErrSeveralDirectories) {
		return nil
	}
	if err != nil {
		return err
	}
	k.installed, k.repairs, k.testErr = false, 0, nil
	k.undoLeft(ctx)
	_, err = k.diversion.Remove(ctx)
	return err
}

// follow changes to the directory of containerd, if that has changed: each version of RKE2 has its own.
func (k *Keeper) follow() error {
	before, err := k.directory()
	if err != nil {
		return err
	}
	dir, left, err := k.find()
	if err != nil {
		dir = before // containerd may be about to start.
	}
	if k.diversion == nil || !winpath.Equal(before, dir) {
		left = appendDir(left, before)
		k.diversion, k.installed, k.repairs, k.testErr = k.newIn(dir), false, 0, nil
	}
	for _, old := range left {
		k.left = appendDir(k.left, old)
	}
	k.left = slices.DeleteFunc(k.left, func(old string) bool { return winpath.Equal(old, dir) })
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.dir = dir
	return nil
}

// undoLeft logs errors only: containers do not need these directories.
func (k *Keeper) undoLeft(ctx context.Context) {
	var err error
	k.left = slices.DeleteFunc(k.left, func(dir string) bool {
		_, removeErr := k.newIn(dir).Remove(ctx)
		err = errors.Join(err, removeErr)
		return removeErr == nil
	})
	k.leftErr.Log(k.log, err, "Cannot undo the diversion in a directory that containerd has left, retrying",
		"The diversion in a directory that containerd has left is undone")
}
