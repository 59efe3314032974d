package nodegpus

import (
	"context"
	"errors"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// ReadAllocations returns the allocation records in a state directory and, if there are any,
// containerd's pods. With an error, it can return some of the records, and no pods.
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

// IsRunning reports whether the pod of a bound record is one of pods and runs.
func IsRunning(pods criclient.Pods, record allocation.Entry) bool {
	if !record.ByKubelet {
		return pods[record.Holder.PodUID].Ready
	}
	for _, pod := range pods {
		if pod.Ready && pod.Namespace == record.Holder.PodNamespace && pod.Name == record.Holder.PodName {
			return true
		}
	}
	return false
}
