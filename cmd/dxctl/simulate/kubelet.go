package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet stands in for the scheduler and the kubelet's device manager of a node
// without a topology policy (pkg/kubelet/cm/devicemanager, v1.34).
type kubelet struct {
	// plugins are the device plugins, by resource.
	plugins map[string]v1beta1.DevicePluginServer
	// listed is what they offer.
	listed map[string][]*v1beta1.Device
	// inUse are the replicas that pods hold, and booked how many the scheduler has
	// given away, both by resource.
	inUse  map[string]map[string]bool
	booked map[string]int
}

// newKubelet returns a kubelet that has heard of all that plugins offer.
func newKubelet(ctx context.Context, plugins map[string]v1beta1.DevicePluginServer) (*kubelet, error) {
	k := &kubelet{plugins: plugins, listed: map[string][]*v1beta1.Device{}, inUse: map[string]map[string]bool{}, booked: map[string]int{}}
	for resource, plugin := range plugins {
		k.inUse[resource] = map[string]bool{}
		s := &firstAnswer{}
		s.ctx, s.cancel = context.WithCancel(ctx)
		err := plugin.ListAndWatch(&v1beta1.Empty{}, s)
		s.cancel()
		if s.devices == nil {
			return nil, fmt.Errorf("hear what is offered of %s: %w", resource, errors.Join(err, ctx.Err()))
		}
		k.listed[resource] = s.devices.GetDevices()
	}
	return k, nil
}

// firstAnswer is a stream that ends with its first message.
type firstAnswer struct {
	grpc.ServerStream

	ctx     context.Context
	cancel  context.CancelFunc
	devices *v1beta1.ListAndWatchResponse
}

// Context implements grpc.ServerStream.
func (s *firstAnswer) Context() context.Context { return s.ctx }

// Send implements grpc.ServerStreamingServer. The message goes the way of the
// wire, for the advertiser encodes its devices itself.
func (s *firstAnswer) Send(message *v1beta1.ListAndWatchResponse) error {
	defer s.cancel()
	wire, err := proto.Marshal(message)
	if err != nil {
		return err
	}
	devices := &v1beta1.ListAndWatchResponse{}
	if err := proto.Unmarshal(wire, devices); err != nil {
		return err
	}
	s.devices = devices
	return nil
}

// healthy returns the IDs of the replicas of resource that can be allocated, in
// the order in which they are offered.
func (k *kubelet) healthy(resource string) []string {
	var ids []string
	for _, d := range k.listed[resource] {
		if d.GetHealth() == v1beta1.Healthy {
			ids = append(ids, d.GetID())
		}
	}
	return ids
}

// schedule books what a pod asks for, or returns why it stays Pending, in the
// scheduler's words.
func (k *kubelet) schedule(spec PodSpec) (pending string) {
	asked := podRequest(spec)
	var reasons []string
	for _, resource := range slices.Sorted(maps.Keys(asked)) {
		if asked[resource] > int64(len(k.healthy(resource))-k.booked[resource]) {
			reasons = append(reasons, "1 Insufficient "+resource)
		}
	}
	if len(reasons) > 0 {
		return unschedulable(strings.Join(reasons, ", "))
	}
	for resource, n := range asked {
		k.booked[resource] += int(n)
	}
	return ""
}

// unschedulable returns the scheduler's words for why this one node is none for a
// pod.
func unschedulable(reasons string) string { return "0/1 nodes are available: " + reasons + "." }

// podRequest returns how many replicas the scheduler books for a pod: as many as
// its containers ask for together, or one of its init containers where that is
// more. Init containers that go on running, sidecars, count with all that start
// after them.
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
func podRequest(spec PodSpec) map[string]int64 {
	running, highest := map[string]int64{}, map[string]int64{}
	for _, c := range spec.InitContainers {
		for resource, n := range c.asked() {
			highest[resource] = max(highest[resource], running[resource]+n)
			if c.isSidecar() {
				running[resource] += n
			}
		}
	}
	for _, c := range spec.Containers {
		for resource, n := range c.asked() {
			running[resource] += n
		}
	}
	for resource, n := range highest {
		running[resource] = max(running[resource], n)
	}
	return running
}

// grant is what the kubelet gave a container of one resource.
type grant struct {
	resource string
	ids      []string
	answer   *v1beta1.ContainerAllocateResponse
}

// admit allocates for each of the pod's containers, by name. An error is the
// kubelet's, which ends the pod: it is Failed with UnexpectedAdmissionError.
func (k *kubelet) admit(ctx context.Context, spec PodSpec) (map[string][]grant, error) {
	grants := map[string][]grant{}
	// reusable are replicas of init containers that have ended by the time that the
	// pod's later containers start.
	reusable := map[string][]string{}
	allocate := func(c ContainerSpec, keeps bool) error {
		counts := c.asked()
		for _, resource := range slices.Sorted(maps.Keys(counts)) {
			given, err := k.allocate(ctx, resource, int(counts[resource]), reusable[resource])
			if err != nil {
				return fmt.Errorf("container %q: %w", c.Name, err)
			}
			if len(given.ids) == 0 {
				continue
			}
			grants[c.Name] = append(grants[c.Name], given)
			reusable[resource] = slices.DeleteFunc(reusable[resource], func(id string) bool { return slices.Contains(given.ids, id) })
			if !keeps {
				reusable[resource] = append(reusable[resource], given.ids...)
			}
		}
		return nil
	}
	for _, c := range spec.InitContainers {
		if err := allocate(c, c.isSidecar()); err != nil {
			return nil, err
		}
	}
	for _, c := range spec.Containers {
		if err := allocate(c, true); err != nil {
			return nil, err
		}
	}
	return grants, nil
}

// allocate chooses count replicas of resource and has the plugin allocate them:
// first those of the pod's own init containers, the others as the plugin prefers.
func (k *kubelet) allocate(ctx context.Context, resource string, count int, reusable []string) (grant, error) {
	plugin, ok := k.plugins[resource]
	if !ok {
		return grant{}, nil // Nobody offers it; then nothing of it was booked.
	}
	healthy := k.healthy(resource)
	if len(healthy) == 0 {
		return grant{}, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", resource)
	}
	if count == 0 {
		return grant{}, nil
	}
	ids := slices.Sorted(slices.Values(reusable))
	ids = ids[:min(count, len(ids))]
	if len(ids) < count {
		available := slices.DeleteFunc(healthy, func(id string) bool { return k.inUse[resource][id] })
		if missing := count - len(ids); len(available) < missing {
			return grant{}, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", resource, missing, len(available))
		}
		preferred, err := plugin.GetPreferredAllocation(ctx, &v1beta1.PreferredAllocationRequest{
			ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{
				AvailableDeviceIDs: append(available, ids...), MustIncludeDeviceIDs: ids, AllocationSize: int32(count),
			}},
		})
		if err != nil {
			return grant{}, err
		}
		ids = preferred.GetContainerResponses()[0].GetDeviceIDs()
	}
	answer, err := plugin.Allocate(ctx, &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return grant{}, err
	}
	if _, err := plugin.PreStartContainer(ctx, &v1beta1.PreStartContainerRequest{DevicesIds: ids}); err != nil {
		return grant{}, err
	}
	for _, id := range ids {
		k.inUse[resource][id] = true
	}
	return grant{resource, ids, answer.GetContainerResponses()[0]}, nil
}
