package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

// Runner keeps a plugin registered with the runtime. The runtime neither
// restarts nor redials a plugin, and drops one that was slow once.
type Runner struct {
	// Socket is the path of the runtime's NRI socket.
	Socket string
	// Name and Index identify the plugin. The runtime calls plugins in the order of
	// their indices, 00 to 99.
	Name, Index string
	Plugin      *Plugin
	// CheckSynchronize returns an error if a registration can crash the runtime. It is
	// called if the one before was lost before Synchronize had ended.
	CheckSynchronize func(context.Context) error
	Log              logrus.FieldLogger

	retryInterval time.Duration // shorter in tests
}

const (
	// retryInterval is the pause between attempts to register. Each one in a row that is lost
	// before Synchronize has ended makes it 8 times as long, up to maxRetryInterval: it may
	// have crashed the runtime.
	retryInterval    = 500 * time.Millisecond
	maxRetryInterval = 5 * time.Minute
	// checkTimeout bounds a call of CheckSynchronize.
	checkTimeout = 10 * time.Second
)

var (
	// errLost is the end of a session in which the plugin was registered.
	errLost           = errors.New("connection lost")
	errUnsynchronized = errors.New("containerd crashed or closed the connection while it sent its pods and containers to the plugin; see its log")
)

// Run registers the plugin, again whenever the connection is lost, until ctx
// ends. Then it returns nil.
func (r *Runner) Run(ctx context.Context) error {
	var logged errlog.Last
	losses := 0 // in a row, before Synchronize had ended
	for {
		err := r.attempt(ctx, losses)
		if ctx.Err() != nil {
			return nil
		}
		switch {
		case errors.Is(err, errUnsynchronized):
			losses++
			r.Plugin.metrics.SynchronizeLosses.WithLabelValues().Inc()
		case errors.Is(err, errLost):
			losses, logged = 0, ""
		}
		if losses == 0 {
			err = fmt.Errorf("%w: is containerd running, and is NRI enabled in its configuration?", err)
		}
		err = fmt.Errorf("%w on %s: %w", errUnregistered, r.Socket, err)
		r.Plugin.unregistered.Store(&err)
		if logged.Replace(err) {
			r.Log.WithError(err).Warn("Containers that request a GPU do not start, retrying")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause(cmp.Or(r.retryInterval, retryInterval), losses)):
		}
	}
}

// pause returns how long to wait after that many losses in a row.
func pause(interval time.Duration, losses int) time.Duration {
	return min(interval<<(3*min(losses, 4)), maxRetryInterval)
}

// attempt is a session, if that cannot crash the runtime. Its error is not nil.
func (r *Runner) attempt(ctx context.Context, losses int) error {
	if losses > 0 {
		bounded, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		if err := r.CheckSynchronize(bounded); err != nil {
			return err
		}
	}
	return r.session(ctx)
}
