package deviceplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// PodTracker finds the pods to which allocation records belong, and those that no longer exist. A
// process has one for all of its runs.
//
// A pod that the kubelet does not list may still exist: a restarted kubelet lists no pod of
// the API server until it has reached the server. So a pod no longer exists only if
//   - this process of the kubelet has listed it or allocated for it, and has not listed it for [missingTimeout], or
//   - this process has listed other pods of the API server, which it gets all at once, and has not
//     listed this one for [neverListedTimeout]: the pod was deleted while the advertiser or the
//     kubelet did not run.
//
// The kubelet's list has no UIDs (PodResources in k8s.io/kubelet, v0.38). If it has another pod with the same
// name, whose container does not hold the replicas or does not exist, the pod counts as not listed.
type PodTracker struct {
	list           func(ctx context.Context) ([]containerDevices, error)
	now            func() time.Time
	missingTimeout time.Duration // shorter in tests

	// kubelet identifies the kubelet's process by its registration socket. The following
	// fields are about that process.
	kubelet localgrpc.FileIdentity
	// lastBefore is the sequence number of the last record that can be one of an earlier process.
	lastBefore uint64
	// listsAPIPods reports whether it has listed a pod of the API server.
	listsAPIPods bool
	owners       map[allocation.ID]owner
}

// owner is the pod of a record.
type owner struct {
	pod podName
	// listed reports whether the kubelet has listed the pod, or allocated for it, since its process started.
	listed bool
	// held reports whether the kubelet has listed the record's container with one of its replicas.
	held bool
	// missingSince is since when the pod has been missing from the list, zero if it is listed.
	missingSince time.Time
}

const (
	missingTimeout     = 5 * time.Second
	neverListedTimeout = 2 * time.Minute
)

// NewPodTracker returns a tracker for the pods of the kubelet that serves its PodResources API
// on socket, a path or on Windows a named pipe.
func NewPodTracker(socket string) *PodTracker {
	list := func(ctx context.Context) ([]containerDevices, error) { return listContainers(ctx, socket) }
	return &PodTracker{list: list, now: time.Now, missingTimeout: missingTimeout}
}

// update lists the kubelet's pods. It returns their containers, and the records
// whose pods no longer exist. kubelet identifies the kubelet's process.
func (t *PodTracker) update(
	ctx context.Context, records []allocation.Entry, kubelet func() (localgrpc.FileIdentity, error),
) (containers []containerDevices, ended []allocation.ID, err error) {
	before, err := kubelet()
	if err != nil {
		return nil, nil, err
	}
	if containers, err = t.list(ctx); err != nil {
		return nil, nil, err
	}
	if after, err := kubelet(); err != nil || !after.Same(before) {
		return nil, nil, cmp.Or(err, errors.New("the kubelet was restarted while it listed its pods"))
	}
	if !before.Same(t.kubelet) {
		t.kubelet, t.lastBefore, t.listsAPIPods, t.owners = before, math.MaxUint64, false, nil
	} else if t.lastBefore == math.MaxUint64 { // The records of the first call can be older than the process.
		t.lastBefore = 0
		for _, record := range records {
			t.lastBefore = max(t.lastBefore, record.Sequence)
		}
	}
	pods := map[podName]bool{}
	for _, c := range containers {
		pods[c.pod] = true
	}
	t.listsAPIPods = t.listsAPIPods || hasAPIPod(pods)
	owners := map[allocation.ID]owner{}
	for _, record := range records {
		o := t.owners[record.ID]
		if pod, ok := ownerOf(record, containers); ok && pod != o.pod {
			o = owner{pod: pod}
		}
		isListed, holds := findHolder(record, containers)
		o.held, o.listed = o.held || holds, o.listed || record.Sequence > t.lastBefore
		// Ordinary init containers are never listed, so their pods do not count as recreated.
		isRecreated := !holds && (isListed || o.held)
		if t.isGone(&o, pods[o.pod] && !isRecreated) {
			ended = append(ended, record.ID)
		}
		owners[record.ID] = o
	}
	t.owners = owners
	return containers, ended, nil
}

// isGone reports whether a pod that is listed now, or is not, no longer exists.
func (t *PodTracker) isGone(o *owner, isListed bool) bool {
	if isListed {
		o.listed, o.missingSince = true, time.Time{}
		return false
	}
	if o.pod == (podName{}) || !o.listed && !t.listsAPIPods {
		return false // It is unknown whether the pod exists.
	}
	now := t.now()
	if o.missingSince.IsZero() {
		o.missingSince = now
		return false
	}
	timeout := neverListedTimeout
	if o.listed {
		timeout = t.missingTimeout
	}
	return now.Sub(o.missingSince) >= timeout
}

// hasAPIPod reports whether one of pods is certainly from the API server. The names of static pods
// end in a dash and the node's name (generatePodName in pkg/kubelet/config, v1.34), so they all have
// the same suffix after the last dash.
func hasAPIPod(pods map[podName]bool) bool {
	suffixes := map[string]bool{}
	for pod := range pods {
		suffixes[pod.name[strings.LastIndexByte(pod.name, '-')+1:]] = true
	}
	return len(suffixes) > 1
}

// ownerOf returns the pod of a record: its holder, and before the record is bound the
// pod that the kubelet lists with one of its replicas. If that is another pod, the
// record's own pod no longer exists.
func ownerOf(record allocation.Entry, containers []containerDevices) (podName, bool) {
	if h := record.Holder; h != nil {
		return podName{h.PodNamespace, h.PodName}, h.PodName != ""
	}
	for _, c := range containers {
		if c.holdsAny(record) {
			return c.pod, true
		}
	}
	return podName{}, false
}

// findHolder reports whether the container that a record is bound to is listed, and whether it holds one of the
// record's replicas.
func findHolder(record allocation.Entry, containers []containerDevices) (isListed, holds bool) {
	for _, c := range containers {
		if h := record.Holder; h != nil && c.pod == (podName{h.PodNamespace, h.PodName}) && c.container == h.Container {
			return true, c.holdsAny(record)
		}
	}
	return false, false
}

const podResourcesTimeout = 2 * time.Second

// podName identifies a pod.
type podName struct{ namespace, name string }

// containerDevices are the replicas that a container holds.
type containerDevices struct {
	pod       podName
	container string
	// replicaIDs are by resource.
	replicaIDs map[string][]string
}

// holdsAny reports whether c holds one of the record's replicas.
func (c containerDevices) holdsAny(record allocation.Entry) bool {
	held := c.replicaIDs[record.Resource]
	return slices.ContainsFunc(record.Replicas, func(r allocation.Replica) bool { return slices.Contains(held, r.ID) })
}

// listContainers returns all containers of the active pods, without ordinary init containers, of the
// kubelet that serves its PodResources API on socket, or nil and an error.
func listContainers(ctx context.Context, socket string) ([]containerDevices, error) {
	ctx, cancel := context.WithTimeout(ctx, podResourcesTimeout)
	defer cancel()
	conn, err := localgrpc.Dial(socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pods of the kubelet on %s: %w", socket, err)
	}
	containers := []containerDevices{}
	for _, pod := range list.GetPodResources() {
		for _, container := range pod.GetContainers() {
			name := podName{pod.GetNamespace(), pod.GetName()}
			c := containerDevices{pod: name, container: container.GetName(), replicaIDs: map[string][]string{}}
			for _, devices := range container.GetDevices() {
				c.replicaIDs[devices.GetResourceName()] = append(c.replicaIDs[devices.GetResourceName()], devices.GetDeviceIds()...)
			}
			containers = append(containers, c)
		}
	}
	return containers, nil
}
