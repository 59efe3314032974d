// Package shimcheck checks whether containerd starts containers with the runtime shim of
// directx-nri.
package shimcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/shim/realshim"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// queryTimeout bounds the query of containerd. A container's start waits for it.
const queryTimeout = time.Second

// ErrNotUsed is the error of a node on which no runtime handler that can have GPUs uses the runtime shim.
var ErrNotUsed = errors.New("containerd does not start containers with " + shimfile.BaseName)

// unknownError is why it is not known whether containers would start with GPUs.
type unknownError struct{ error }

func (e unknownError) Unwrap() error { return e.error }

// IsDefinite reports whether an error of [Check] means that containers would not start with GPUs. If
// not, that is not known, as during a restart of containerd.
func IsDefinite(err error) bool {
	_, unknown := errors.AsType[unknownError](err)
	return err != nil && !unknown
}

// Check returns nil if the containerd at criSocket starts the pods of at least one runtime handler
// with the shim, and the shim has not recorded in stateDir that containerd does not run it for the
// containers of pods ([shimfile.CheckBypass]). One handler is enough: the interlock stops containers of
// the others. Whether the real shim exists is not checked: the shim may find it on containerd's PATH.
func Check(ctx context.Context, stateDir, criSocket string) error {
	realShim, err := policy.ReadRealShim(stateDir)
	if err != nil {
		return err
	}
	if err := realshim.CheckKernel(realShim); err != nil {
		return err
	}
	switch err := shimfile.CheckBypass(stateDir); {
	case errors.Is(err, shimfile.ErrBypassed):
		return err
	case err != nil:
		return unknownError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	running, err := criclient.ReadRunning(ctx, criSocket)
	if err != nil {
		return unknownError{fmt.Errorf("%w; is containerd running, and is --cri-socket %s correct?", err, criSocket)}
	}
	if err := CheckUsed(running); err != nil {
		return err
	}
	for _, handler := range running.Handlers {
		if !shimfile.IsShim(handler.RuntimePath) {
			continue // With a runtime_type only, containerd searches its own PATH.
		}
		_, err := os.Stat(handler.RuntimePath)
		if errors.Is(err, fs.ErrNotExist) {
			err := fmt.Errorf("containers cannot start: runtime shim not found: %s, the runtime_path of the handler %s, does not exist", handler.RuntimePath, handler.Name)
			return errlog.WithRemedy(err, "run 'dxctl runtime install'")
		}
		if err != nil {
			return unknownError{fmt.Errorf("find the runtime shim: %w", err)}
		}
	}
	return nil
}

// CheckUsed returns an error that matches [ErrNotUsed] unless at least one handler starts
// containers with the runtime shim, and none starts containers without their GPUs.
func CheckUsed(c criclient.RunningConfig) error {
	if i := slices.IndexFunc(c.Handlers, containerdconfig.Handler.IgnoresDevices); i >= 0 {
		h := c.Handlers[i]
		program := cmp.Or(h.BinaryName, h.RuntimePath, h.RuntimeType)
		err := fmt.Errorf("%w: the runtime handler %s runs %s, which starts containers without their GPUs", ErrNotUsed, h.Name, program)
		return errlog.WithRemedy(err, "remove that handler from containerd's configuration")
	}
	if err := criclient.CheckRunsShim(c.OS, c.Version); err != nil {
		return fmt.Errorf("%w: %w", ErrNotUsed, err)
	}
	eligible := containerdconfig.Eligible(c.Handlers, c.OS)
	switch {
	case slices.ContainsFunc(eligible, containerdconfig.Handler.UsesShim):
		return nil
	case len(eligible) == 0:
		err := fmt.Errorf("%w: no runtime handler can have GPUs: %s", ErrNotUsed, containerdconfig.WhyNotEligible(c.Handlers, c.OS))
		return errlog.WithRemedy(err, "add one to containerd's configuration, or run 'dxctl runtime configure --restart'")
	}
	err := fmt.Errorf("%w: runtime_path of the runtime handler %s is %s",
		ErrNotUsed, eligible[0].Name, cmp.Or(eligible[0].RuntimePath, "not set"))
	return errlog.WithRemedy(err, "run 'dxctl runtime configure --restart'")
}
