package deviceplugin

import (
	"context"
	"errors"
	"sync"
	"time"
)

// allocateGuard tracks the calls of Allocate for all resources. It fails those that overlap, because they
// can crash the kubelet, or because the kubelet would allocate their replicas again.
//
// A kubelet that allocates at admission handles one pod after the other, so its calls never overlap. One
// that allocates at creation can have several allocations in flight (pkg/kubelet/cm/devicemanager/manager.go,
// v1.34 and v1.37):
//   - When an allocation begins, the kubelet deletes the state of all other pods (devicesToReuse). It
//     panics if Allocate then succeeds for one of these. So the first of two must fail.
//   - When an allocation fails, the kubelet can allocate the replicas of all allocations in flight
//     again (allocateContainerResources). So the second must fail, too.
//
// The kubelet retries all pods that are due once a second. So the guard returns failures one at a time, and
// the pods of overlapping allocations do not overlap again. A call that only waits for that has failed
// already, and does not affect others.
//
// For an allocation, the kubelet calls GetPreferredAllocation and then Allocate. The guard cannot match
// the two calls, so the allocation begins with Allocate here. The first call only makes the allocations
// in flight fail. Two conflicts are missed: if the second call comes later than answerDelay after the
// first, and if another allocation begins or fails while the kubelet saves the one that has succeeded.
type allocateGuard struct {
	// answerDelay is how long a call takes at least, so that overlaps can be seen. It is 0 where the kubelet
	// allocates at admission.
	answerDelay time.Duration
	// failureInterval is the time between two failures because of an overlap, more than a second. failing has a
	// value while a call waits for it.
	failureInterval time.Duration
	failing         chan struct{}
	// succeeded receives a value after a successful allocation.
	succeeded chan struct{}

	mu       sync.Mutex // guards the following fields
	inFlight int        // calls between begin and end
	// events is how often an allocation has begun or failed.
	events int
}

func newAllocateGuard(config Config, timing timing) *allocateGuard {
	g := &allocateGuard{
		failureInterval: timing.failureInterval, failing: make(chan struct{}, 1), succeeded: make(chan struct{}, 1),
	}
	if config.AllocatesAtCreation {
		g.answerDelay = timing.answerDelay
	}
	return g
}

// allocating reports whether an allocation is in flight. The kubelet's pods must not be listed then:
// if another pod has ended meanwhile, the kubelet would consider the allocation's replicas unused and
// allocate them again (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager, v1.34). No lock could
// delay an allocation that begins meanwhile: the kubelet chooses the replicas before it calls Allocate.
func (g *allocateGuard) allocating() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inFlight > 0
}

// interrupt makes the calls in flight fail, because another allocation begins or has failed.
func (g *allocateGuard) interrupt() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events++
}

// begin begins a call of Allocate. It returns the number of the event of its beginning, 0 if another call is in
// flight, and a channel that receives a value after answerDelay.
func (g *allocateGuard) begin() (event int, delay <-chan time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight++
	g.events++
	if g.inFlight == 1 {
		event = g.events
	}
	return event, time.After(g.answerDelay)
}

var errConcurrent = errors.New(
	"another allocation began at the same time, and concurrent allocations can crash the kubelet of Windows (kubernetes#136021); the kubelet tries again soon")

// end ends a call that succeeded, or failed with err. It returns after the delay of begin. Its error is err, or
// errConcurrent if another allocation was in flight, began or failed meanwhile.
func (g *allocateGuard) end(ctx context.Context, event int, delay <-chan time.Time, err error) error {
	if err == nil {
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-delay:
		}
	}
	g.mu.Lock()
	g.inFlight--
	overlaps := g.events != event
	g.mu.Unlock()
	if err == nil && !overlaps {
		signal(g.succeeded)
		return nil
	}
	if err == nil {
		err = errConcurrent
		g.awaitTurn(ctx)
	}
	g.interrupt()
	return err
}

// awaitTurn returns when the call may fail, or ctx ends.
func (g *allocateGuard) awaitTurn(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case g.failing <- struct{}{}:
		defer func() { <-g.failing }()
	}
	select {
	case <-ctx.Done():
	case <-time.After(g.failureInterval):
	}
}
