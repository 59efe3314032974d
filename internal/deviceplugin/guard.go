package deviceplugin

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/directx-nri/directx-nri/internal/wait"
)

// allocateGuard tracks the calls of Allocate for all resources. It fails those that would crash the
// kubelet, or whose replicas the kubelet would allocate again.
//
// A kubelet that allocates at admission handles one pod after the other. One that allocates at
// creation handles several pods at once, so their allocations can overlap
// (pkg/kubelet/cm/devicemanager/manager.go, v1.34 and v1.37):
//   - When an allocation begins, the kubelet deletes the state of all other pods (devicesToReuse). It
//     panics if a pod's state is missing after Allocate has succeeded. So only the allocation that
//     began last may succeed.
//   - If several begin within a short time, it is unknown which one began last. So all of them fail.
//   - When an allocation fails, the kubelet considers the replicas of all allocations in flight unused
//     (allocateContainerResources), and can allocate them again. So all of them fail.
//
// An allocation begins with a call of GetPreferredAllocation. Which call of Allocate follows is unknown,
// so the guard counts from Allocate, and the first call only makes the allocations in flight fail. A
// conflict is missed if the kubelet waits for longer than conflictWindow between the two calls.
type allocateGuard struct {
	// conflictWindow is how long before and after a call begins no other allocation may begin or
	// fail. It is 0 if the kubelet allocates at admission.
	conflictWindow time.Duration
	inFlight       atomic.Int32
	// lastBeginOrFailure is when an allocation last began or failed, nil if none did. An allocation that
	// begins within conflictWindow after this time fails.
	lastBeginOrFailure atomic.Pointer[time.Time]
	// succeeded receives a value after a successful allocation.
	succeeded chan struct{}
}

func newAllocateGuard(atCreation bool, conflictWindow time.Duration) *allocateGuard {
	g := &allocateGuard{succeeded: make(chan struct{}, 1)}
	if atCreation {
		g.conflictWindow = conflictWindow
	}
	return g
}

// markConflict makes the calls in flight fail, and those that begin within conflictWindow.
func (g *allocateGuard) markConflict() {
	now := time.Now()
	g.lastBeginOrFailure.Store(&now)
}

var errConcurrent = errors.New(
	"another allocation began at the same time, and concurrent allocations can crash the kubelet of Windows; the kubelet tries again in 10 to 15 seconds (kubernetes#136021)")

// do calls allocate, and returns when the conflictWindow after its begin has passed. It returns
// errConcurrent if another allocation began or failed in the conflictWindow before or after.
func (g *allocateGuard) do(ctx context.Context, allocate func() error) error {
	began := time.Now()
	last := g.lastBeginOrFailure.Swap(&began)
	if g.conflictWindow > 0 && last != nil && began.Sub(*last) < g.conflictWindow {
		g.markConflict()
		return errConcurrent
	}
	err := allocate()
	if err == nil && g.conflictWindow > 0 {
		wait.For(ctx, time.Until(began.Add(g.conflictWindow)))
		if g.lastBeginOrFailure.Load() != &began {
			err = errConcurrent
		}
	}
	if err = cmp.Or(err, context.Cause(ctx)); err != nil {
		g.markConflict() // The kubelet now considers the replicas of the calls in flight unused.
		return err
	}
	signal(g.succeeded)
	return nil
}
