package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/cmd/directx-advertiser/shimcheck"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
)

// gate is a source that lists its GPUs while check finds that containers can be given them.
type gate struct {
	discovery.Source
	check func(context.Context) error
	log   logrus.FieldLogger
	// refusal is the last error of check if it is definite, else nil.
	refusal atomic.Pointer[error]

	// open is the last definite result of check, wasOpen reports whether it was ever true.
	// Only Devices uses them, and one goroutine calls it.
	open, wasOpen bool
}

// isDefinite reports whether err means that containers cannot start with GPUs, and not that this
// is unknown, as during a restart of containerd.
func isDefinite(err error) bool {
	return shimcheck.IsDefinite(err) || errors.Is(err, allocation.ErrNotWritable)
}

// Devices implements [discovery.Source]. Before the first definite result it returns the error of
// the check. While the result is unknown, the last one stays in force.
func (g *gate) Devices(ctx context.Context) ([]discovery.Device, error) {
	err := g.check(ctx)
	refused := isDefinite(err)
	if refused {
		g.refusal.Store(&err)
	} else {
		g.refusal.Store(nil)
	}
	switch {
	case err == nil && !g.open:
		g.log.Info("Advertising GPUs")
		g.open, g.wasOpen = true, true
	case refused && g.open:
		g.log.WithError(err).Error("Stopped advertising GPUs: containers cannot start with them")
		g.open = false
	}
	switch {
	case g.open:
		return g.Source.Devices(ctx)
	case g.wasOpen:
		return nil, nil
	}
	return nil, fmt.Errorf("containers would not start with a GPU: %w", err)
}

// Ready returns the last error of the check if it is definite. It uses no file and no socket. An
// unknown result is no error: with the feature gate WindowsCPUAndMemoryAffinity a refused
// allocation fails the pod permanently, and the interlock stops a container that the check lets
// pass.
func (g *gate) Ready(context.Context, string, []string) error {
	if err := g.refusal.Load(); err != nil {
		return *err
	}
	return nil
}
