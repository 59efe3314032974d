package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/shimfile"
)

const (
	// checkAge is how long containerd's answer is used: many containers may start at once.
	checkAge = time.Second
	// checkTimeout bounds a query of containerd. A container's start waits for it.
	checkTimeout = time.Second
)

// Definite reasons why containers would not start with GPUs, beside
// [containerdconfig.ErrNotRouted].
var (
	errShimMissing = errors.New("runtime shim not found")
	errNotServed   = errors.New("the containers of pods are not served")
)

// shimChecker reports whether the running containerd starts containers with our runtime
// shim. A pod with another runtime handler is refused by its interlock.
type shimChecker struct {
	stateDir  string
	criSocket paths.CRISocket
	now       func() time.Time

	// mu is held during a query of containerd, so that one serves many callers.
	mu      sync.Mutex
	queried time.Time
	err     error
}

// Check returns nil if pods of at least one runtime handler get their GPUs from our
// shim. Errors that are not definite mean that it is not known.
func (c *shimChecker) Check(ctx context.Context) error {
	// It is read each time: the sandbox of the pod that is starting may just have written it.
	switch mark, found, err := shimfile.ReadNotServed(c.stateDir); {
	case err != nil:
		return err
	case found:
		return fmt.Errorf("%w: %s", errNotServed, mark)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now().Sub(c.queried) < checkAge {
		return c.err
	}
	err := c.query(ctx)
	if ctx.Err() == nil {
		c.queried, c.err = c.now(), err
	}
	return err
}

func (c *shimChecker) query(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	socket := c.criSocket.String()
	connection, err := containerdconfig.Dial(socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	loaded, err := containerdconfig.Load(ctx, connection)
	if err != nil {
		return fmt.Errorf("%w; is containerd running, and is --cri-socket %s right?", err, socket)
	}
	if err := loaded.Check(); err != nil {
		return err
	}
	for _, h := range loaded.Handlers {
		if !h.Ours() {
			continue
		}
		if _, err := os.Stat(h.RuntimePath); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %s, the runtime_path of the handler %s, does not exist; run 'dxctl runtime install'", errShimMissing, h.RuntimePath, h.Name)
		} else if err != nil {
			return fmt.Errorf("find the runtime shim: %w", err)
		}
	}
	return nil
}

func isDefinite(err error) bool {
	return slices.ContainsFunc([]error{containerdconfig.ErrNotRouted, errShimMissing, errNotServed, allocation.ErrNotWritable}, func(definite error) bool {
		return errors.Is(err, definite)
	})
}

// conditionalSource lists the GPUs of its source while containers can be given them. Devices is
// called by one goroutine.
type conditionalSource struct {
	discovery.Source
	check func(context.Context) error
	log   logrus.FieldLogger
	// refused is the last answer of check if it was a definite error, else nil.
	refused atomic.Pointer[error]

	// enabled is the last definite answer, wasEnabled reports whether it was ever true.
	enabled, wasEnabled bool
}

// Devices implements [discovery.Source]. Before the first definite answer it returns
// the error of the check. While the answer is not known, as during a restart of
// containerd, the last one is used.
func (s *conditionalSource) Devices(ctx context.Context) ([]discovery.Device, error) {
	err := s.check(ctx)
	var refused *error
	if isDefinite(err) {
		refused = &err
	}
	s.refused.Store(refused)
	switch {
	case err == nil && !s.enabled:
		s.log.Info("Advertising GPUs")
		s.enabled, s.wasEnabled = true, true
	case s.enabled && isDefinite(err):
		s.log.WithError(err).Error("Stopped advertising GPUs: containers cannot start with them")
		s.enabled = false
	}
	switch {
	case s.enabled:
		return s.Source.Devices(ctx)
	case s.wasEnabled:
		return nil, nil
	}
	return nil, fmt.Errorf("containers would not start with a GPU: %w", err)
}

// Ready returns the last answer of the check if it is a definite error. It uses no file and no
// socket. That the answer is not known, as during a restart of containerd, is no error: with
// the feature gate WindowsCPUAndMemoryAffinity a refused allocation fails the pod for good,
// and the interlock is there for what the check misses.
func (s *conditionalSource) Ready(context.Context, string, []string) error {
	if err := s.refused.Load(); err != nil {
		return *err
	}
	return nil
}
