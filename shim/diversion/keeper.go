package diversion

import (
	"context"
	"errors"
	"fmt"
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

// Keeper makes a diversion and keeps it while a daemon runs. Its methods must not be called concurrently.
type Keeper struct {
	dir     string
	newFile string

	// findContainerd returns the directory of the containerd that runs, "" unless it is one that has the runhcs shim.
	findContainerd func() string
	containerd     string // when it was found last

	diversion  *Diversion // nil until its directory is found
	installed  bool       // by this Keeper
	repairs    int
	lastRepair time.Time
	// testErr is the error of the self-test at testedAt.
	testErr  error
	testedAt time.Time
}

// NewKeeper returns a Keeper that installs the program newFile in the directory dir, as [Open] finds it.
func NewKeeper(dir, newFile string) *Keeper {
	return &Keeper{dir: dir, newFile: newFile, findContainerd: findContainerd}
}

// Ensure makes the diversion with the first call, and makes it again with later calls when it is not whole.
// After several repairs, the error matches [ErrContested], and Ensure changes nothing until [Keeper.Undo]. While our
// shim is gone and cannot be placed, the real one is put back, because no container starts without either.
func (k *Keeper) Ensure(ctx context.Context) error {
	if err := k.open(); err != nil {
		return err
	}
	k.follow(ctx)
	err := k.install(ctx)
	if err != nil && errors.Is(k.diversion.Check(), ErrInterrupted) {
		_, removeErr := k.diversion.Remove(ctx)
		err = errors.Join(err, removeErr)
	}
	return err
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
	if k.testErr = nil; errors.Is(err, shimfile.ErrSelfTest) {
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
	if err := k.open(); errors.Is(err, ErrUnknownDirectory) {
		return nil
	} else if err != nil {
		return err
	}
	k.installed, k.repairs, k.testErr = false, 0, nil
	_, err := k.diversion.Remove(ctx)
	return err
}

// follow moves the diversion to the directory of containerd, if that has changed: each version of RKE2 has its own.
func (k *Keeper) follow(ctx context.Context) {
	if k.dir != "" {
		return
	}
	before, now := k.containerd, k.findContainerd()
	if now == "" {
		return
	}
	k.containerd = now
	if before != "" && !winpath.Equal(now, before) {
		_, _ = k.diversion.Remove(ctx) // That containerd does not run any more.
		k.diversion, k.installed, k.repairs, k.testErr = New(now), false, 0, nil
	}
}

func (k *Keeper) open() (err error) {
	if k.diversion == nil {
		k.diversion, err = Open(k.dir)
	}
	return err
}
