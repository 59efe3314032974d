package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"

	"directx-nri/advertiser"
	"directx-nri/discovery"
	"directx-nri/internal/containerdconfig"
)

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
	criSocket  string
	connection *grpc.ClientConn
	// holder tells which pod a container that starts is of.
	holder func(context.Context, advertiser.Start) (advertiser.Pod, error)
	now    func() time.Time

	// mu is held while containerd is asked, so that it is asked once for many.
	mu     sync.Mutex
	asked  time.Time
	loaded containerdconfig.Loaded
	err    error
}

func newShimGate(criSocket, podResources string) (*shimGate, error) {
	connection, err := containerdconfig.Dial(criSocket)
	if err != nil {
		return nil, err
	}
	return &shimGate{criSocket: criSocket, connection: connection, holder: advertiser.PodResourcesHolder(podResources), now: time.Now}, nil
}

// Close ends the connection to containerd.
func (g *shimGate) Close() { g.connection.Close() }

// Routes returns what containerd has loaded when pods of at least one runtime
// handler get their GPUs by our shim. An error that matches
// [containerdconfig.ErrNotRouted] or errShimMissing is what containerd, and the disk,
// say for sure; with others it could not be told.
func (g *shimGate) Routes(ctx context.Context) (containerdconfig.Loaded, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.asked.IsZero() && g.now().Sub(g.asked) < answerAge {
		return g.loaded, g.err
	}
	loaded, err := g.ask(ctx)
	if ctx.Err() != nil {
		// The one who asked has gone. That says nothing to the next.
		return loaded, err
	}
	g.asked, g.loaded, g.err = g.now(), loaded, err
	return loaded, err
}

func (g *shimGate) ask(ctx context.Context) (containerdconfig.Loaded, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	loaded, err := containerdconfig.Load(ctx, g.connection)
	if err != nil {
		return containerdconfig.Loaded{}, g.unanswered(err)
	}
	if err := loaded.Check(); err != nil {
		return containerdconfig.Loaded{}, err
	}
	for _, h := range loaded.Handlers {
		if !h.Ours() {
			continue
		}
		if _, err := os.Stat(h.RuntimePath); errors.Is(err, fs.ErrNotExist) {
			return containerdconfig.Loaded{}, fmt.Errorf("%w: %s, by which containers of the runtime handler %s are to be started; run 'dxctl runtime install'", errShimMissing, h.RuntimePath, h.Name)
		} else if err != nil {
			return containerdconfig.Loaded{}, fmt.Errorf("see whether the runtime shim is there: %w", err)
		}
	}
	return loaded, nil
}

func (g *shimGate) unanswered(err error) error {
	return fmt.Errorf("%w; is containerd running, and is --cri-socket %s right?", err, g.criSocket)
}

// Ready returns nil when the container that starts gets its GPU by our shim: see
// [advertiser.Config]. Where pods of some runtime handlers would not, it finds
// out by which one this pod runs, and refuses when it cannot.
func (g *shimGate) Ready(ctx context.Context, start advertiser.Start) error {
	loaded, err := g.Routes(ctx)
	if err != nil {
		return err
	}
	if _, others := loaded.Split(); len(others) == 0 {
		return nil
	}
	sandboxes, err := containerdconfig.Sandboxes(ctx, g.connection)
	if err != nil {
		return g.unanswered(err)
	}
	if len(sandboxes) == 0 {
		return fmt.Errorf("containerd on %s has no pod; is --cri-socket that of the kubelet's containerd?", g.criSocket)
	}
	elsewhere := unserved(loaded, sandboxes)
	if len(elsewhere) == 0 {
		return nil
	}
	pod, err := g.holder(ctx, start)
	if err != nil {
		return unknown(loaded, elsewhere, err)
	}
	return podServed(loaded, sandboxes, pod)
}

// gatedSource lists the GPUs of its source only where containers can be given
// them: a node offers nothing that it cannot honour.
type gatedSource struct {
	discovery.Source
	gate func(context.Context) (containerdconfig.Loaded, error)
	log  logrus.FieldLogger

	mu sync.Mutex
	// open tells what the gate has said for sure last, withdrawn that it was
	// open before.
	open, withdrawn bool
	// told is what was logged of the handlers since it opened.
	told string
}

// Devices implements [discovery.Source]. Until the gate has opened, it returns
// the gate's error. When it closes later there are no devices. While it is not
// known, such as when containerd is restarted, all stays as it was.
func (s *gatedSource) Devices(ctx context.Context) ([]discovery.Device, error) {
	loaded, err := s.gate(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.open, s.withdrawn = true, false
		s.tell(loaded)
	case errors.Is(err, containerdconfig.ErrNotRouted), errors.Is(err, errShimMissing):
		if s.open {
			s.log.WithError(err).Error("GPUs are offered no longer: containers would not get them")
			s.open, s.withdrawn, s.told = false, true, ""
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

// tell logs which runtime handlers' pods get GPUs, when that is news.
func (s *gatedSource) tell(loaded containerdconfig.Loaded) {
	served, others := loaded.Split()
	now := fmt.Sprint(served, others)
	if now == s.told {
		return
	}
	s.told = now
	if len(others) == 0 {
		s.log.Info("containerd starts containers by the runtime shim; GPUs are offered")
		return
	}
	s.log.WithFields(logrus.Fields{"handlers": strings.Join(served, " "), "others": strings.Join(others, " "), "default": loaded.Default}).
		Info("containerd starts containers of these runtime handlers by the runtime shim; GPUs are offered, and pods of the others that ask for one are not started")
}
