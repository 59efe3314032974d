package advertiser

import (
	"context"
	"errors"
	"slices"

	"directx-nri/internal/allocation"
	"directx-nri/internal/localgrpc"
)

// PodTracker finds the pods of allocation records and when they cease to exist. A
// process has one for all of its runs.
//
// That the kubelet does not list a pod proves nothing by itself: after a restart it
// lists no pod of the API server before it has reached that, and may still use what
// the pod holds. So a pod no longer exists only if the same process of the kubelet
// listed it before. A pod that was deleted while the advertiser or the kubelet did
// not run is never found to be gone: its record ends when another pod binds a newer
// record of one of its replicas.
type PodTracker struct {
	list func(ctx context.Context) ([]ContainerDevices, error)

	// kubelet identifies the kubelet's process by its registration socket, owners has
	// what that process listed.
	kubelet localgrpc.Identity
	owners  map[allocation.ID]owner
}

// owner is the pod of a record.
type owner struct {
	pod Pod
	// listed reports whether the kubelet has listed it, missed is how many times in
	// a row it has not listed it since.
	listed bool
	missed int
}

// enoughMissed is how many times a pod must be missing from the list in a row.
const enoughMissed = 2

// NewPodTracker returns a tracker for the pods of the kubelet behind r.
func NewPodTracker(r PodResources) *PodTracker { return &PodTracker{list: r.Containers} }

// update asks the kubelet for its pods. It returns their containers, and the records
// whose pods no longer exist. kubelet identifies the kubelet's process.
func (t *PodTracker) update(ctx context.Context, live []allocation.LiveRecord, kubelet func() (localgrpc.Identity, error)) (containers []ContainerDevices, over []allocation.ID, err error) {
	before, err := kubelet()
	if err != nil {
		return nil, nil, err
	}
	if containers, err = t.list(ctx); err != nil {
		return nil, nil, err
	}
	after, err := kubelet()
	switch {
	case err != nil:
		return nil, nil, err
	case !after.Same(before):
		return nil, nil, errors.New("the kubelet was restarted while it listed its pods")
	case !before.Same(t.kubelet):
		t.kubelet, t.owners = before, nil
	}
	pods := map[Pod]bool{}
	for _, c := range containers {
		pods[c.Pod] = true
	}
	owners := map[allocation.ID]owner{}
	for _, record := range live {
		o := t.owners[record.ID]
		if pod, ok := ownerOf(record, containers); ok && pod != o.pod {
			o = owner{pod: pod}
		}
		switch {
		case pods[o.pod]:
			o.listed, o.missed = true, 0
		case o.listed:
			o.missed++
		}
		owners[record.ID] = o
		if o.missed >= enoughMissed {
			over = append(over, record.ID)
		}
	}
	t.owners = owners
	return containers, over, nil
}

// ownerOf returns the pod of a record: its holder, and before the record is bound the
// pod that the kubelet lists with one of its replicas. If that is another pod, the
// record's own pod no longer exists.
func ownerOf(record allocation.LiveRecord, containers []ContainerDevices) (Pod, bool) {
	if h := record.Holder; h != nil {
		return Pod{h.PodNamespace, h.PodName}, h.PodName != ""
	}
	i := slices.IndexFunc(containers, func(c ContainerDevices) bool { return c.holdsAny(record.Resource, replicaIDs(record)) })
	if i < 0 {
		return Pod{}, false
	}
	return containers[i].Pod, true
}

func replicaIDs(record allocation.LiveRecord) []string {
	ids := make([]string, 0, len(record.Replicas))
	for _, r := range record.Replicas {
		ids = append(ids, r.ID)
	}
	return ids
}

// soleHolder returns the one container that holds exactly the replicas of record. A
// replica that an init container had is listed with the container that took it over,
// whose own record names it too, and perhaps others.
func soleHolder(containers []ContainerDevices, record allocation.LiveRecord) (ContainerDevices, bool) {
	want := slices.Sorted(slices.Values(replicaIDs(record)))
	found := slices.DeleteFunc(slices.Clone(containers), func(c ContainerDevices) bool {
		return !slices.Equal(want, slices.Sorted(slices.Values(c.Replicas[record.Resource])))
	})
	if len(found) != 1 {
		return ContainerDevices{}, false
	}
	return found[0], true
}
