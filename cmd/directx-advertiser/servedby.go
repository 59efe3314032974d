package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"

	"directx-nri/discovery"
	"directx-nri/internal/crihandlers"
)

// Who gives containers their GPUs.
const (
	servedByNRI  = "nri"
	servedByShim = "shim"
)

// servedByDefault is the shim on Windows, where containerd calls no NRI plugin.
func servedByDefault(os string) string {
	if os == "windows" {
		return servedByShim
	}
	return servedByNRI
}

const (
	// answerAge is how long an answer of containerd holds: many containers may
	// start at once.
	answerAge = time.Second
	// answerLimit bounds a question. A container's start waits for it.
	answerLimit = time.Second
)

var errShimMissing = errors.New("the runtime shim is not there")

// shimGate tells whether the running containerd starts containers by our
// runtime shim.
type shimGate struct {
	connection *grpc.ClientConn
	now        func() time.Time

	// mu is held while containerd is asked, so that it is asked once for many.
	mu    sync.Mutex
	asked time.Time
	err   error
}

func newShimGate(criSocket string) (*shimGate, error) {
	connection, err := crihandlers.Dial(criSocket)
	if err != nil {
		return nil, err
	}
	return &shimGate{connection: connection, now: time.Now}, nil
}

// Close ends the connection to containerd.
func (g *shimGate) Close() { g.connection.Close() }

// Ready returns nil when containers that hold a GPU get it by our shim. An error
// that matches [crihandlers.ErrNotRouted] or errShimMissing is what containerd,
// and the disk, say for sure; with others it could not be told.
func (g *shimGate) Ready(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.asked.IsZero() && g.now().Sub(g.asked) < answerAge {
		return g.err
	}
	err := g.ask(ctx)
	if ctx.Err() != nil {
		// The one who asked has gone. That says nothing to the next.
		return err
	}
	g.asked, g.err = g.now(), err
	return err
}

func (g *shimGate) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	handlers, err := crihandlers.Handlers(ctx, g.connection)
	if err != nil {
		return err
	}
	if err := crihandlers.Check(handlers); err != nil {
		return err
	}
	for _, h := range handlers {
		if !h.Ours() {
			continue
		}
		if _, err := os.Stat(h.RuntimePath); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %s, by which containers of the runtime handler %s are to be started; run 'dxctl runtime install'", errShimMissing, h.RuntimePath, h.Name)
		} else if err != nil {
			return fmt.Errorf("see whether the runtime shim is there: %w", err)
		}
	}
	return nil
}

// gatedSource lists the GPUs of its source only where containers can be given
// them: a node offers nothing that it cannot honour.
type gatedSource struct {
	discovery.Source
	gate func(context.Context) error
	log  logrus.FieldLogger

	mu sync.Mutex
	// open tells what the gate has said for sure last, withdrawn that it was
	// open before.
	open, withdrawn bool
}

// Devices implements [discovery.Source]. Until the gate has opened, it returns
// the gate's error. When it closes later there are no devices. While it is not
// known, such as when containerd is restarted, all stays as it was.
func (s *gatedSource) Devices(ctx context.Context) ([]discovery.Device, error) {
	err := s.gate(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		if !s.open {
			s.log.Info("containerd starts containers by the runtime shim; GPUs are offered")
		}
		s.open, s.withdrawn = true, false
	case errors.Is(err, crihandlers.ErrNotRouted), errors.Is(err, errShimMissing):
		if s.open {
			s.log.WithError(err).Error("GPUs are offered no longer: containers would not get them")
			s.open, s.withdrawn = false, true
		}
	}
	switch {
	case s.open:
		return s.Source.Devices(ctx)
	case s.withdrawn:
		return nil, nil
	}
	return nil, fmt.Errorf("no GPU is offered as long as containers would not get it: %w", err)
}
