package advertiser

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// inFlight tracks the calls of Allocate for all resources.
//
// A kubelet that allocates at creation does so for several pods at once. When an
// allocation begins, the kubelet drops state to which the earlier ones still write after
// Allocate has succeeded: it panics (devicesToReuse in
// pkg/kubelet/cm/devicemanager/manager.go, v1.34 and v1.37). So of several that begin at
// once all but the last must fail, and if they are close, which one is the last is unknown.
// When one fails, the kubelet considers the replicas of those in flight unused
// (allocateContainerResources there). A kubelet that allocates at admission does so for one
// pod after the other.
type inFlight struct {
	// quiet is how long no other allocation may begin or fail before and after one begins, 0
	// if the kubelet allocates at admission.
	quiet time.Duration
	count atomic.Int32
	// disturbed is when an allocation last began or failed, nil if there was none.
	disturbed atomic.Pointer[time.Time]
	// succeeded receives a value after a successful allocation.
	succeeded chan struct{}
}

func newInFlight(atCreation bool, quiet time.Duration) *inFlight {
	f := &inFlight{succeeded: make(chan struct{}, 1)}
	if atCreation {
		f.quiet = quiet
	}
	return f
}

// disturb makes the allocations in flight fail, and those that begin within quiet.
func (f *inFlight) disturb() {
	now := time.Now()
	f.disturbed.Store(&now)
}

// allocateCall is one call of Allocate.
type allocateCall struct {
	others *inFlight
	began  time.Time
	// wasQuiet reports that no other allocation began or failed just before.
	wasQuiet bool
}

// begin counts a call of Allocate until end.
func (f *inFlight) begin() *allocateCall {
	f.count.Add(1)
	call := &allocateCall{others: f, began: time.Now()}
	last := f.disturbed.Swap(&call.began)
	call.wasQuiet = last == nil || call.began.Sub(*last) >= f.quiet
	return call
}

func (c *allocateCall) end() { c.others.count.Add(-1) }

var errConcurrent = errors.New("the allocation for another container began meanwhile, and two at once can crash the kubelet of Windows (kubernetes#136021); the kubelet tries again in 10 to 15 seconds")

// awaitQuiet waits until the call has lasted for quiet, and returns errConcurrent if another
// allocation began or failed meanwhile, or in the same time before the call.
func (c *allocateCall) awaitQuiet(ctx context.Context) error {
	if c.others.quiet == 0 {
		return nil
	}
	timer := time.NewTimer(time.Until(c.began.Add(c.others.quiet)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	if !c.wasQuiet || c.others.disturbed.Load() != &c.began {
		return errConcurrent
	}
	return nil
}
