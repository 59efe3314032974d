package deviceplugin

import (
	"cmp"
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
//     panics if Allocate then succeeds for one of these.
//   - When an allocation fails, the kubelet can allocate the replicas of all allocations in flight
//     again (allocateContainerResources). So if one fails, all of them fail.
//
// For an allocation, the kubelet calls GetPreferredAllocation and then Allocate. The guard cannot match
// the two calls, so the allocation begins with Allocate here. The first call only makes the allocations
// in flight fail. Two conflicts are missed: if the second call comes later than answerDelay after the
// first, and if another allocation begins while the kubelet saves the one that has succeeded.
type allocateGuard struct {
	// answerDelay is how long a call takes at least, so that overlaps can be seen. It is 0 where the kubelet
	// allocates at admission.
	answerDelay time.Duration
	// succeeded receives a value after a successful allocation.
	succeeded chan struct{}

	mu       sync.Mutex // guards the following fields
	inFlight int        // calls of do
	// events is how often an allocation has begun or failed.
	events int
}

func newAllocateGuard(config Config, timing timing) *allocateGuard {
	g := &allocateGuard{succeeded: make(chan struct{}, 1)}
	if config.CheckStart == nil {
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

// interrupt makes the calls in flight fail. It is called at each GetPreferredAllocation, because an
// allocation begins, and when one fails.
func (g *allocateGuard) interrupt() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events++
}

// begin counts a call. overlaps reports whether another one is in flight, and event is the call's number.
func (g *allocateGuard) begin() (event int, overlaps bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight++
	g.events++
	return g.events, g.inFlight > 1
}

// end ends the call that began with an event. It returns err, or errConcurrent if another event has followed.
// A failure is an event itself.
func (g *allocateGuard) end(event int, err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight--
	if err == nil && g.events != event {
		err = errConcurrent
	}
	if err != nil {
		g.events++
	}
	return err
}

var errConcurrent = errors.New(
	"another allocation began at the same time, and concurrent allocations can crash the kubelet of Windows; the kubelet tries again in 10 to 15 seconds (kubernetes#136021)")

// do calls allocate, and returns after answerDelay. It returns errConcurrent if another allocation was
// in flight, began or failed meanwhile.
func (g *allocateGuard) do(ctx context.Context, allocate func() error) error {
	delayEnd := time.Now().Add(g.answerDelay)
	event, overlaps := g.begin()
	err := errConcurrent
	if !overlaps {
		if err = allocate(); err == nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(delayEnd)):
			}
		}
	}
	if err := g.end(event, cmp.Or(err, context.Cause(ctx))); err != nil {
		return err
	}
	signal(g.succeeded)
	return nil
}
