package nodegpus

import (
	"context"
	"errors"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// ReadAllocations returns the allocation records in a state directory and, if there are any,
// containerd's pods. With an error, it can return a part of the records alone.
func ReadAllocations(ctx context.Context, stateDir, criSocket string) ([]allocation.Entry, criclient.Pods, error) {
	entries, problems, err := allocation.OpenStore(paths.Allocations(stateDir)).List(ctx)
	for _, p := range problems {
		err = errors.Join(err, p.Err)
	}
	if err != nil || len(entries) == 0 {
		return entries, nil, err
	}
	pods, err := criclient.ReadPods(ctx, criSocket)
	return entries, pods, err
}
