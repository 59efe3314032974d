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

// checkedSource is a source that lists its GPUs while check finds that containers can be given them.
type checkedSource struct {
	discovery.Source
	check func(context.Context) error
	log   logrus.FieldLogger
	// refusal is the last error of check if it is definite, else nil.
	refusal atomic.Pointer[error]

	// advertised is whether the last definite result of check was nil, everAdvertised whether one was.
	// Only Devices uses them, and one goroutine calls it.
	advertised, everAdvertised bool
}

// isDefinite reports whether err means that containers cannot start with GPUs, and not that this
// is unknown, as during a restart of containerd.
func isDefinite(err error) bool {
	return shimcheck.IsDefinite(err) || errors.Is(err, allocation.ErrNotWritable)
}

// Devices implements [discovery.Source]. Before the first definite result it returns the error of
// the check. While the result is unknown, the last one stays in force.
func (g *checkedSource) Devices(ctx context.Context) ([]discovery.Device, error) {
	err := g.check(ctx)
	refused := isDefinite(err)
	if refused {
		g.refusal.Store(&err)
	} else {
		g.refusal.Store(nil)
	}
	switch {
	case err == nil && !g.advertised:
		g.log.Info("Advertising GPUs")
		g.advertised, g.everAdvertised = true, true
	case refused && g.advertised:
		g.log.WithError(err).Error("Stopped advertising GPUs: containers cannot start with them")
		g.advertised = false
	}
	switch {
	case g.advertised:
		return g.Source.Devices(ctx)
	case g.everAdvertised:
		return nil, nil
	}
	return nil, fmt.Errorf("containers would not start with a GPU: %w", err)
}

// CheckReady returns the last error of the check if it is definite. It uses no file and no socket. An
// unknown result is no error: with the feature gate WindowsCPUAndMemoryAffinity a refused
// allocation fails the pod permanently, and the interlock stops a container that the check lets
// pass.
func (g *checkedSource) CheckReady(context.Context, string, []string) error {
	if err := g.refusal.Load(); err != nil {
		return *err
	}
	return nil
}
