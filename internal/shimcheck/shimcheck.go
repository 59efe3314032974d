// Package shimcheck checks whether containerd starts containers with the runtime shim of
// directx-nri.
package shimcheck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/shimfile"
)

// queryTimeout bounds the query of containerd. A container's start waits for it.
const queryTimeout = time.Second

// errShimMissing is a definite reason why containers would not start with GPUs, as [ErrNotUsed] and
// [shimfile.ErrBypassed] are.
var errShimMissing = errors.New("runtime shim not found")

// IsDefinite reports whether err is a reason why containers would not start with GPUs. Other
// errors of [Check] mean that this is not known, as during a restart of containerd.
func IsDefinite(err error) bool {
	return errors.Is(err, ErrNotUsed) || errors.Is(err, errShimMissing) || errors.Is(err, shimfile.ErrBypassed)
}

// Check returns nil if the containerd at criSocket starts the pods of at least one runtime handler
// with the shim. The interlock stops the containers of pods with other runtime handlers. The shim
// records in stateDir that containerd does not run it for the containers of pods.
func Check(ctx context.Context, stateDir, criSocket string) error {
	if err := shimfile.CheckBypass(stateDir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	running, err := criclient.ReadRunning(ctx, criSocket)
	if err != nil {
		return fmt.Errorf("%w; is containerd running, and is --cri-socket %s correct?", err, criSocket)
	}
	if err := CheckUsed(running); err != nil {
		return err
	}
	for _, handler := range running.Handlers {
		if !handler.UsesShim() {
			continue
		}
		if _, err := os.Stat(handler.RuntimePath); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %s, the runtime_path of the handler %s, does not exist; run 'dxctl runtime install'", errShimMissing, handler.RuntimePath, handler.Name)
		} else if err != nil {
			return fmt.Errorf("find the runtime shim: %w", err)
		}
	}
	return nil
}
