package discovery

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/directx-nri/directx-nri/internal/bounded"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

// DriverSource is a [Source] of the system's own GPUs, whose drivers can fail or hang. It keeps the
// last list, and lists the GPUs in one goroutine at a time. Use [NewDriverSource].
type DriverSource struct {
	list func(ctx context.Context) ([]Device, error)

	// reading is the lock of a read of all devices. It has an element while it is held, so that
	// waiting for it can be canceled.
	reading chan struct{}

	mu   sync.Mutex
	last []Device // the last list without an error, guarded by mu
}

// answerTimeout is how long the driver may take to answer. A read takes up to seconds while the
// system starts.
const answerTimeout = 20 * time.Second

// ErrNoAnswer means that a driver hangs.
var ErrNoAnswer = fmt.Errorf("no answer within %s", answerTimeout)

// NewDriverSource returns a source of the devices that list returns.
//
// list is not called concurrently, and may ignore its context. If it returns an error or does not
// answer in time, the devices of the last list are unhealthy, because containers would not start with
// them.
func NewDriverSource(list func(ctx context.Context) ([]Device, error)) *DriverSource {
	return &DriverSource{list: list, reading: make(chan struct{}, 1)}
}

// Devices implements [Source]. Each call reads all devices.
func (s *DriverSource) Devices(ctx context.Context, _ ...string) ([]Device, error) {
	devices, err := s.Await(ctx, func(ctx context.Context) ([]Device, error) {
		select {
		case s.reading <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		defer func() { <-s.reading }()
		return s.list(ctx)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.last = devices
		return slices.Clone(devices), nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if ctx.Err() != nil || len(s.last) == 0 {
		return nil, fmt.Errorf("find GPUs: %w", err)
	}
	devices = slices.Clone(s.last)
	for i := range devices {
		devices[i].Health = Health{Reason: "the driver does not answer: " + errlog.Text(err)}
	}
	return devices, nil
}

// Await returns the result of query, which asks the driver, or an error if the driver does not answer in time:
// see [bounded.Call].
func (s *DriverSource) Await(ctx context.Context, query func(context.Context) ([]Device, error)) ([]Device, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, ErrNoAnswer)
	defer cancel()
	if ctx.Err() != nil { // Otherwise, select could still choose a result.
		return nil, context.Cause(ctx)
	}
	return bounded.Call(ctx, query)
}
