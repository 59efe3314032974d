package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/paths"
	"directx-nri/internal/shimfile"
)

const (
	// gateAge is how long containerd's answer is used: many containers may start at once.
	gateAge = time.Second
	// gateTimeout bounds a query of containerd. A container's start waits for it.
	gateTimeout = time.Second
)

// Certain reasons why containers would not start with GPUs, beside
// [containerdconfig.ErrNotRouted].
var (
	errShimMissing = errors.New("runtime shim not found")
	errNotServed   = errors.New("the containers of pods are not served")
)

// shimGate reports whether the running containerd starts containers with our runtime
// shim. A pod with another runtime handler is refused by its interlock.
type shimGate struct {
	stateDir  string
	criSocket paths.CRISocket
	now       func() time.Time

	// mu is held during a query of containerd, so that one serves many callers.
	mu      sync.Mutex
	queried time.Time
	err     error
}

// Check returns nil if pods of at least one runtime handler get their GPUs from our
// shim. Errors that are not certain mean that it is not known.
func (g *shimGate) Check(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now().Sub(g.queried) < gateAge {
		return g.err
	}
	err := g.query(ctx)
	if ctx.Err() == nil {
		g.queried, g.err = g.now(), err
	}
	return err
}

func (g *shimGate) query(ctx context.Context) error {
	switch mark, found, err := shimfile.ReadNotServed(g.stateDir); {
	case err != nil:
		return err
	case found:
		return fmt.Errorf("%w: %s", errNotServed, mark)
	}
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	socket := g.criSocket.String()
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

func isCertain(err error) bool {
	return slices.ContainsFunc([]error{containerdconfig.ErrNotRouted, errShimMissing, errNotServed, allocation.ErrNotWritable}, func(certain error) bool {
		return errors.Is(err, certain)
	})
}

// gatedSource lists the GPUs of its source while containers can be given them. Devices is
// called by one goroutine.
type gatedSource struct {
	discovery.Source
	check func(context.Context) error
	log   logrus.FieldLogger

	// open is the last certain answer, opened reports whether it was ever true.
	open, opened bool
}

// Devices implements [discovery.Source]. Before the first certain answer it returns
// the error of the check. While the answer is not known, as during a restart of
// containerd, the last one is used.
func (s *gatedSource) Devices(ctx context.Context) ([]discovery.Device, error) {
	err := s.check(ctx)
	switch {
	case err == nil && !s.open:
		s.log.Info("Containers can be given GPUs, which are offered")
		s.open, s.opened = true, true
	case s.open && isCertain(err):
		s.log.WithError(err).Error("GPUs are no longer offered, because containers would not start with them")
		s.open = false
	}
	switch {
	case s.open:
		return s.Source.Devices(ctx)
	case s.opened:
		return nil, nil
	}
	return nil, fmt.Errorf("containers would not start with a GPU: %w", err)
}
