package diversion

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

const (
	// maxRepairs is how often a [Keeper] repairs the diversion within repairPeriod.
	maxRepairs   = 3
	repairPeriod = time.Hour
)

// ErrContested means that another program replaces our shim again and again.
var ErrContested = errors.New("another program replaces our shim again and again")

// Keeper makes a diversion and keeps it while a daemon runs.
type Keeper struct {
	find    func() (dir string, err error)
	newFile string

	mu        sync.Mutex
	diversion *Diversion // nil until its directory is found
	installed bool       // by this Keeper
	repairs   []time.Time
	contested bool
}

// NewKeeper returns a Keeper that installs the program newFile in the directory dir, or if dir is "" in
// the one that [Find] returns.
func NewKeeper(dir, newFile string) *Keeper {
	if dir == "" {
		return &Keeper{find: Find, newFile: newFile}
	}
	return &Keeper{diversion: New(dir), newFile: newFile}
}

// Ensure makes the diversion with the first call, and makes it again with later calls when it is not whole.
// After several repairs, the error matches [ErrContested], and Ensure changes nothing until [Keeper.Undo].
func (k *Keeper) Ensure(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.open(); err != nil {
		return err
	}
	if k.installed {
		err := k.diversion.Check()
		if err == nil {
			return nil
		}
		if k.isContested() {
			return errlog.WithRemedy(fmt.Errorf("%w: %w", ErrContested, err), "find out which program manages containerd's files, or set injection: kubelet")
		}
	}
	changed, err := k.diversion.Install(ctx, k.newFile)
	if err != nil {
		return err
	}
	if k.installed && changed {
		k.repairs = append(k.repairs, time.Now())
	}
	k.installed = true
	return nil
}

// Undo undoes the diversion, also one that another process has made. If containerd is nowhere, there is none.
func (k *Keeper) Undo(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.open(); errors.Is(err, ErrUnknownDirectory) {
		return nil
	} else if err != nil {
		return err
	}
	k.installed, k.contested, k.repairs = false, false, nil
	_, err := k.diversion.Remove(ctx)
	return err
}

func (k *Keeper) open() error {
	if k.diversion != nil {
		return nil
	}
	dir, err := k.find()
	if err != nil {
		return err
	}
	k.diversion = New(dir)
	return nil
}

func (k *Keeper) isContested() bool {
	k.repairs = slices.DeleteFunc(k.repairs, func(t time.Time) bool { return time.Since(t) > repairPeriod })
	k.contested = k.contested || len(k.repairs) >= maxRepairs
	return k.contested
}
