package diversion

import (
	"errors"
	"fmt"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
)

var (
	// ErrNotDiverted means that containerd runs the real shim: it was never diverted, or another program, such
	// as an update of containerd, has replaced our shim.
	ErrNotDiverted = errors.New("containerd runs " + paths.Runhcs + " without GPUs: our shim is not in its place")
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
}

// check returns nil if the diversion is whole, or one of the sentinel errors.
func check(s state) error {
	switch {
	case s.real == ours:
		err := fmt.Errorf("%w: the file in %s is not the real shim, but ours", ErrBroken, paths.RealShimDir)
		return errlog.WithRemedy(err, "delete both files of that name, and install containerd's "+paths.Runhcs+" again")
	case s.place == foreign:
		return ErrNotDiverted
	case s.place == ours && s.real == foreign:
		return nil
	case s.place == ours:
		err := fmt.Errorf("%w: the real shim, which ours runs, is missing in %s", ErrBroken, paths.RealShimDir)
		return errlog.WithRemedy(err, "install containerd's "+paths.Runhcs+" again")
	case s.real == foreign:
		return ErrInterrupted
	default:
		return ErrNoShim
	}
}
