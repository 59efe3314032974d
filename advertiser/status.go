package advertiser

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"directx-nri/discovery"
)

// Status is what the advertiser offers at one moment.
type Status struct {
	// Devices are all devices of the last look, offered or not.
	Devices []DeviceStatus
	// Resources are sorted by name.
	Resources []ResourceStatus
}

// DeviceStatus is one device of the node.
type DeviceStatus struct {
	Kind    discovery.Kind
	Healthy bool
}

// ResourceStatus is one resource.
type ResourceStatus struct {
	Name string
	// Registered tells that the kubelet watches the resource's list now.
	Registered bool
	GPUs       []GPUStatus
}

// GPUStatus is one GPU of a resource.
type GPUStatus struct {
	InstanceID   string
	LocationPath string
	Healthy      bool
	// Replicas is how many containers may share it.
	Replicas int
}

// ReplicaOf returns the instance ID of the GPU that a replica ID of ours is
// of; ok is false for any other text.
func ReplicaOf(replicaID string) (instanceID string, ok bool) {
	instanceID, _, ok = ParseReplicaID(replicaID)
	return instanceID, ok
}

// board is what of the advertiser's work others may look at while it goes on.
type board struct {
	mu        sync.Mutex
	devices   []DeviceStatus
	paths     map[string]string // location path by folded instance ID
	feeds     map[string]*feed  // by resource
	watching  map[string]int    // streams by resource
	lastRound time.Time
}

// saw notes the devices of a look, and what offers there are then.
func (b *board) saw(devices []discovery.Device, offers []*offer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.devices, b.paths, b.feeds = nil, map[string]string{}, map[string]*feed{}
	for _, d := range devices {
		b.devices = append(b.devices, DeviceStatus{Kind: d.Kind(), Healthy: d.Health.OK()})
		b.paths[foldID(d.InstanceID)] = d.LocationPath
	}
	for _, o := range offers {
		b.feeds[o.resource] = o.feed
	}
}

// round notes that the loop which looks at the GPUs goes on.
func (b *board) round(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastRound = now
}

// watch notes that the kubelet began (1) or ended (-1) to watch a resource.
func (b *board) watch(resource string, change int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watching == nil {
		b.watching = map[string]int{}
	}
	b.watching[resource] += change
}

func (b *board) status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Status{Devices: slices.Clone(b.devices)}
	for resource, feed := range b.feeds {
		r := ResourceStatus{Name: resource, Registered: b.watching[resource] > 0}
		pool, _ := feed.current()
		for _, g := range pool.gpus {
			r.GPUs = append(r.GPUs, GPUStatus{
				InstanceID: g.instanceID, LocationPath: b.paths[foldID(g.instanceID)],
				Healthy: g.usable(), Replicas: g.replicas,
			})
		}
		s.Resources = append(s.Resources, r)
	}
	slices.SortFunc(s.Resources, func(a, b ResourceStatus) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// Status returns what is offered now. It may be called at any time.
func (a *Advertiser) Status() Status { return a.board.status() }

// maxSilence is how long the loop that looks at the GPUs may take for a round
// before it counts as stuck. It looks every 10 s.
const maxSilence = 2 * time.Minute

// Alive returns nil while the advertiser works, and otherwise what does not. It
// may be called at any time.
func (a *Advertiser) Alive() error {
	a.board.mu.Lock()
	defer a.board.mu.Unlock()
	if last := a.board.lastRound; !last.IsZero() && a.now().Sub(last) > maxSilence {
		return fmt.Errorf("the GPUs of this node have not been looked at for %s: discovery hangs", a.now().Sub(last).Round(time.Second))
	}
	return nil
}

var errNotOffered = errors.New("no resource is offered yet")

// Registered returns nil when the kubelet watches the lists of all resources,
// and otherwise which it does not. It may be called at any time.
func (a *Advertiser) Registered() error {
	status := a.Status()
	if len(status.Resources) == 0 {
		return errNotOffered
	}
	var missing []string
	for _, r := range status.Resources {
		if !r.Registered {
			missing = append(missing, r.Name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the kubelet does not watch %s: is it running?", strings.Join(missing, ", "))
	}
	return nil
}

// PodResourcesHeld returns a function that asks the kubelet's PodResources API on
// socket which replica IDs containers hold, by resource. The kubelet tells
// nothing of ordinary init containers. It takes at most two seconds.
func PodResourcesHeld(socket string) func(ctx context.Context) (map[string][]string, error) {
	return func(ctx context.Context) (map[string][]string, error) {
		list, err := listPodResources(ctx, socket)
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet on %s what containers hold: %w", socket, err)
		}
		held := map[string][]string{}
		for _, pod := range list {
			for _, container := range pod.GetContainers() {
				for _, devices := range container.GetDevices() {
					name := devices.GetResourceName()
					held[name] = append(held[name], devices.GetDeviceIds()...)
				}
			}
		}
		return held, nil
	}
}

// PodResourcesTogether returns a function that asks the kubelet's PodResources
// API on socket for all replica IDs, by resource, of the container that a start
// is of, as far as they are of resources that ours tells to be ours. It takes at
// most two seconds. Its error matches [ErrNoHolder] when the kubelet names no
// container or several, as with ordinary init containers.
func PodResourcesTogether(socket string, ours func(resource string) bool) func(ctx context.Context, start Start) (map[string][]string, error) {
	return func(ctx context.Context, start Start) (map[string][]string, error) {
		list, err := listPodResources(ctx, socket)
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet on %s who holds %s: %w", socket, start, err)
		}
		var found []map[string][]string
		for _, pod := range list {
			for _, container := range pod.GetContainers() {
				held := map[string][]string{}
				for _, devices := range container.GetDevices() {
					if name := devices.GetResourceName(); ours(name) {
						held[name] = append(held[name], devices.GetDeviceIds()...)
					}
				}
				if slices.ContainsFunc(held[start.Resource], func(id string) bool { return slices.Contains(start.ReplicaIDs, id) }) {
					found = append(found, held)
				}
			}
		}
		if len(found) != 1 {
			return nil, fmt.Errorf("who holds %s: %w", start, ErrNoHolder)
		}
		return found[0], nil
	}
}
