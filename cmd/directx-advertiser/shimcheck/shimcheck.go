// Package shimcheck checks whether containerd starts containers with the runtime shim of
// directx-nri.
package shimcheck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/shimfile"
)

const (
	// maxAge is how long containerd's answer is used: many containers may start at once.
	maxAge = time.Second
	// queryTimeout bounds a query of containerd. A container's start waits for it.
	queryTimeout = time.Second
)

// Definite reasons why containers would not start with GPUs, beside
// [containerdconfig.ErrShimNotUsed].
var (
	errShimMissing = errors.New("runtime shim not found")
	errNotServed   = errors.New("the containers of pods are not served")
)

// IsDefinite reports whether err is a reason why containers would not start with GPUs. Other
// errors of [Checker.Check] mean that this is not known, as during a restart of containerd.
func IsDefinite(err error) bool {
	return errors.Is(err, containerdconfig.ErrShimNotUsed) || errors.Is(err, errShimMissing) || errors.Is(err, errNotServed)
}

// Checker checks the running containerd.
type Checker struct {
	stateDir  string
	criSocket paths.CRISocket
	now       func() time.Time

	// mu is held during a query of containerd, so that one serves many callers.
	mu      sync.Mutex
	queried time.Time
	err     error
}

// New returns a checker of the containerd at criSocket. In stateDir the shim reports that
// containerd does not start it for the containers of pods.
func New(stateDir string, criSocket paths.CRISocket) *Checker {
	return &Checker{stateDir: stateDir, criSocket: criSocket, now: time.Now}
}

// Check returns nil if pods of at least one runtime handler get their GPUs from our
// shim. A pod with another runtime handler is refused by its interlock.
func (c *Checker) Check(ctx context.Context) error {
	// It is read each time: the sandbox of the pod that is starting may just have written it.
	switch reason, err := shimfile.ReadNotServed(c.stateDir); {
	case err != nil:
		return err
	case reason != "":
		return fmt.Errorf("%w: %s", errNotServed, reason)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now().Sub(c.queried) < maxAge {
		return c.err
	}
	err := c.query(ctx)
	if ctx.Err() == nil {
		c.queried, c.err = c.now(), err
	}
	return err
}

func (c *Checker) query(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	socket := c.criSocket.String()
	loaded, err := containerdconfig.Load(ctx, socket)
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
