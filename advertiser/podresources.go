package advertiser

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"directx-nri/internal/localgrpc"
)

// podResourcesTimeout bounds a question to the PodResources API.
const podResourcesTimeout = 2 * time.Second

// busyPause is how long to wait when the kubelet has been asked too often. It
// takes 100 questions a second from all that ask, and ten at once
// (pkg/kubelet/apis/podresources/constants.go, v1.34).
const busyPause = 50 * time.Millisecond

// PodResourcesPods returns a function for [Config.Pods] that asks the kubelet's
// PodResources API on socket, on Linux
// /var/lib/kubelet/pod-resources/kubelet.sock and on Windows
// \\.\pipe\kubelet-pod-resources. It takes at most two seconds.
//
// It tells which pods there are and not what they hold, because the API is
// silent about ordinary init containers, and the kubelet is not.
func PodResourcesPods(socket string) func(ctx context.Context) (map[string]bool, error) {
	return func(ctx context.Context) (map[string]bool, error) {
		list, err := listPodResources(ctx, socket)
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet on %s for its pods: %w", socket, err)
		}
		pods := make(map[string]bool, len(list))
		for _, pod := range list {
			pods[pod.GetNamespace()+"/"+pod.GetName()] = true
		}
		return pods, nil
	}
}

// Pod names a pod.
type Pod struct{ Namespace, Name string }

// String returns namespace and name with a slash between.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// ErrNoHolder tells that the kubelet names no pod, or more than one, as the
// holder of replicas. It names none for what only an ordinary init container
// holds.
var ErrNoHolder = errors.New("the kubelet does not tell whose they are")

// PodResourcesHolder returns a function that asks the kubelet's PodResources API
// on socket which pod a starting container is of. It takes at most two seconds,
// and may be called from within [Config.Ready]: the kubelet holds no lock while
// it waits for PreStartContainer (callPreStartContainerIfNeeded in
// pkg/kubelet/cm/devicemanager, v1.34).
func PodResourcesHolder(socket string) func(ctx context.Context, start Start) (Pod, error) {
	return func(ctx context.Context, start Start) (Pod, error) {
		ctx, cancel := context.WithTimeout(ctx, podResourcesTimeout)
		defer cancel()
		list, err := listPodResources(ctx, socket)
		// Many containers may start at once, and we are not the only ones who ask.
		for status.Code(err) == codes.ResourceExhausted && pause(ctx, busyPause) {
			list, err = listPodResources(ctx, socket)
		}
		if err != nil {
			return Pod{}, fmt.Errorf("ask the kubelet on %s who holds %s: %w", socket, start, err)
		}
		return holder(list, start)
	}
}

// pause waits for d, and tells whether that was before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// holder returns the one pod of list that holds replicas of start. That is the
// pod which starts: the kubelet gives a replica to one pod at a time. Not all of
// them need be listed, since an init container hands on to the pod's later
// containers only as many as those ask for.
func holder(list []*podresources.PodResources, start Start) (Pod, error) {
	var holders []Pod
	for _, pod := range list {
		if holds(pod, start) {
			holders = append(holders, Pod{pod.GetNamespace(), pod.GetName()})
		}
	}
	switch len(holders) {
	case 0:
		return Pod{}, fmt.Errorf("who holds %s: %w, as with those of init containers", start, ErrNoHolder)
	case 1:
		return holders[0], nil
	}
	return Pod{}, fmt.Errorf("who holds %s: %w: %s and %s both have some", start, ErrNoHolder, holders[0], holders[1])
}

func holds(pod *podresources.PodResources, start Start) bool {
	for _, container := range pod.GetContainers() {
		for _, devices := range container.GetDevices() {
			if devices.GetResourceName() == start.Resource &&
				slices.ContainsFunc(devices.GetDeviceIds(), func(id string) bool { return slices.Contains(start.ReplicaIDs, id) }) {
				return true
			}
		}
	}
	return false
}

// String returns what is held, for messages.
func (s Start) String() string {
	return fmt.Sprintf("%s %s", s.Resource, strings.Join(s.ReplicaIDs, ", "))
}

func listPodResources(ctx context.Context, socket string) ([]*podresources.PodResources, error) {
	ctx, cancel := context.WithTimeout(ctx, podResourcesTimeout)
	defer cancel()
	conn, err := localgrpc.Dial(socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	return list.GetPodResources(), err
}
