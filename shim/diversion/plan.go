package diversion

import (
	"errors"
	"fmt"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
)

var (
	// ErrNotDiverted means that containerd runs the real shim, which is in its own place.
	ErrNotDiverted = errors.New("containerd runs " + paths.Runhcs + " without GPUs: our shim is not in its place")
	// ErrOverwritten means that another program, such as an update of containerd, has put a real
	// shim into the place of ours. Install repairs it.
	ErrOverwritten = errors.New(paths.Runhcs + " of containerd has replaced our shim")
	// ErrInterrupted means that no shim is in the place where containerd looks for it, because
	// Install or Remove was interrupted. No container starts. Install and Remove repair it.
	ErrInterrupted = errors.New("no container starts: " + paths.Runhcs + " is missing, and the real one is in " + paths.RealShimDir)
	// ErrBroken means that neither Install nor Remove can repair the directory.
	ErrBroken = errors.New("the runtime shim cannot run containers")
	// ErrNoShim means that there is no shim at all: the directory is not that of the runhcs shim.
	ErrNoShim = errors.New("there is no " + paths.Runhcs)
)

// kind is what the file at one of the two paths is.
type kind string

const (
	absent  kind = "absent"
	foreign kind = "foreign" // a real shim
	ours    kind = "ours"
)

// state is the state of the directory.
type state struct {
	place kind // the file that containerd runs
	real  kind // the file in the directory of the real shim
	// leftover means that place is the real shim that Remove has restored, and real is what Remove
	// could not delete yet.
	leftover bool
}

// step is a change that leaves the directory in a state that containerd can use, or that [Diversion.Check]
// and [plan] recognize.
type step string

const (
	setAside step = "set the older real shim aside"
	divert   step = "move the real shim and place ours"
	update   step = "replace our shim if the new one differs"
	place    step = "place our shim"
	restore  step = "replace our shim by a copy of the real one"
	recreate step = "place a copy of the real shim"
	discard  step = "delete the moved real shim"
)

// check returns nil if the diversion is whole, or one of the sentinel errors.
func check(s state) error {
	switch {
	case s.real == ours:
		err := fmt.Errorf("%w: the file in %s is not the real shim, but ours", ErrBroken, paths.RealShimDir)
		return errlog.WithRemedy(err, "delete both files of that name, and install containerd's "+paths.Runhcs+" again")
	case s == state{place: ours, real: absent}:
		err := fmt.Errorf("%w: the real shim, which ours runs, is missing in %s", ErrBroken, paths.RealShimDir)
		return errlog.WithRemedy(err, "install containerd's "+paths.Runhcs+" again")
	case s == state{place: absent, real: absent}:
		return ErrNoShim
	case s.place == absent:
		return ErrInterrupted
	case s.place == ours:
		return nil
	case s.real == absent || s.leftover:
		return ErrNotDiverted
	default:
		return ErrOverwritten
	}
}

// planInstall returns the steps that make the diversion.
func planInstall(s state) ([]step, error) {
	switch err := check(s); {
	case errors.Is(err, ErrBroken) || errors.Is(err, ErrNoShim):
		return nil, err
	case s.place == ours:
		return []step{update}, nil
	case s.place == absent:
		return []step{place}, nil
	case s.real == absent:
		return []step{divert}, nil
	default: // The real shim that another program has put there is the newer one.
		return []step{setAside, divert}, nil
	}
}

// planRemove returns the steps that undo the diversion.
func planRemove(s state) ([]step, error) {
	switch err := check(s); {
	case errors.Is(err, ErrBroken):
		return nil, err
	case s.real == absent:
		return nil, nil
	case s.place == ours: // A move would fail the starts in flight, in which our shim is about to run the real one.
		return []step{restore, discard}, nil
	case s.place == absent:
		return []step{recreate, discard}, nil
	default:
		return []step{discard}, nil
	}
}
