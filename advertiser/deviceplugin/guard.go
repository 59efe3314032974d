package deviceplugin

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// allocateGuard tracks the calls of Allocate for all resources. It fails those that would crash the
// kubelet, or whose replicas the kubelet would allocate again.
//
// A kubelet that allocates at admission handles one pod after the other. One that allocates at
// creation can have several allocations in flight (pkg/kubelet/cm/devicemanager/manager.go, v1.34
// and v1.37):
//   - When an allocation begins, the kubelet deletes the state of all other pods (devicesToReuse). It
//     panics if Allocate then succeeds for one of these. So only the allocation that began last may
//     succeed.
//   - If several begin almost at once, it is unknown which one began last. So all of them fail.
//   - When an allocation fails, the kubelet can allocate the replicas of all allocations in flight
//     again (allocateContainerResources). So all of them fail.
//
// For an allocation, the kubelet calls GetPreferredAllocation and then Allocate. The guard cannot match
// the two calls, so the allocation begins with Allocate here. The first call only makes the allocations
// in flight fail. Two conflicts are missed: if the second call comes later than conflictWindow after the
// first, and if another allocation begins while the kubelet saves the one that has succeeded.
type allocateGuard struct {
	// conflictWindow is how long before and after a call begins no other allocation may begin or
	// fail. It is 0 if the kubelet allocates at admission.
	conflictWindow time.Duration
	inFlight       atomic.Int32 // calls of do
	// succeeded receives a value after a successful allocation.
	succeeded chan struct{}

	mu sync.Mutex // guards the following fields
	// events is how often an allocation has begun or failed, and lastEvent is when one last did.
	events    int
	lastEvent time.Time
}

func newAllocateGuard(atCreation bool, conflictWindow time.Duration) *allocateGuard {
	g := &allocateGuard{succeeded: make(chan struct{}, 1)}
	if atCreation {
		g.conflictWindow = conflictWindow
	}
	return g
}

// allocating reports whether an allocation is in flight. The kubelet's pods must not be listed then:
// if another pod has ended meanwhile, the kubelet would consider the allocation's replicas unused and
// allocate them again (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager, v1.34). No lock could
// delay an allocation that begins meanwhile: the kubelet chooses the replicas before it calls Allocate.
func (g *allocateGuard) allocating() bool { return g.inFlight.Load() > 0 }

// preferredAllocationBegan is called at each GetPreferredAllocation: an allocation begins, so those in
// flight fail.
func (g *allocateGuard) preferredAllocationBegan() {
	if g.allocating() {
		g.addEvent()
	}
}

// preferredAllocationFailed is called when GetPreferredAllocation fails: the allocation has failed, and no
// call of Allocate follows.
func (g *allocateGuard) preferredAllocationFailed() { g.addEvent() }

// addEvent is called when an allocation begins or fails. It makes the calls in flight fail, and those
// that begin within conflictWindow. It returns the event's number, and the time since the one before.
func (g *allocateGuard) addEvent() (number int, sinceLast time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	sinceLast = now.Sub(g.lastEvent)
	g.events++
	g.lastEvent = now
	return g.events, sinceLast
}

var errConcurrent = errors.New(
	"another allocation began at the same time, and concurrent allocations can crash the kubelet of Windows; the kubelet tries again in 10 to 15 seconds (kubernetes#136021)")

// do calls allocate, and returns when the conflictWindow after the call began has passed. It returns
// errConcurrent if another allocation began or failed in the conflictWindow before or after.
func (g *allocateGuard) do(ctx context.Context, allocate func() error) error {
	g.inFlight.Add(1)
	defer g.inFlight.Add(-1)
	end := time.Now().Add(g.conflictWindow)
	number, sinceLast := g.addEvent()
	var err error
	if sinceLast < g.conflictWindow {
		err = errConcurrent
	} else if err = allocate(); err == nil && g.conflictWindow > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(end)):
		}
		g.mu.Lock()
		if g.events != number {
			err = errConcurrent
		}
		g.mu.Unlock()
	}
	if err = cmp.Or(err, context.Cause(ctx)); err != nil {
		g.addEvent() // The allocation has failed.
		return err
	}
	signal(g.succeeded)
	return nil
}
