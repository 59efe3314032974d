package advertiser

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"directx-nri/discovery"
)

// Status is the state of the advertiser at one moment.
type Status struct {
	// Devices are all devices of the node, offered or not.
	Devices []DeviceStatus
	// Resources are sorted by name.
	Resources []ResourceStatus
}

// DeviceStatus is the state of one device of the node.
type DeviceStatus struct {
	Kind    discovery.Kind
	Healthy bool
}

// ResourceStatus is the state of one resource.
type ResourceStatus struct {
	Name string
	// Registered reports whether the kubelet watches the resource's list.
	Registered bool
	GPUs       []GPUStatus
}

// GPUStatus is the state of one GPU of a resource.
type GPUStatus struct {
	InstanceID   string
	LocationPath string
	Healthy      bool
	// Replicas is the number of containers that can share the GPU.
	Replicas int
}

// statusTracker has the state that other goroutines may read.
type statusTracker struct {
	mu            sync.Mutex
	devices       []DeviceStatus
	locationPaths map[string]string // by normalized instance ID
	pools         map[string]*broadcaster
	watchers      map[string]int // ListAndWatch streams by resource
	lastLook      time.Time
	problem       error
}

func newStatusTracker() *statusTracker {
	return &statusTracker{pools: map[string]*broadcaster{}, watchers: map[string]int{}}
}

func (t *statusTracker) addResource(name string, pools *broadcaster) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pools[name] = pools
}

// setDevices records the node's devices, and why not all can be offered.
func (t *statusTracker) setDevices(devices []discovery.Device, problem error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.devices, t.locationPaths, t.problem = nil, map[string]string{}, problem
	for _, d := range devices {
		t.devices = append(t.devices, DeviceStatus{Kind: d.Kind(), Healthy: d.Health.OK()})
		t.locationPaths[normalizeID(d.InstanceID)] = d.LocationPath
	}
}

func (t *statusTracker) setLook(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastLook = now
}

func (t *statusTracker) addWatcher(resource string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watchers[resource] += n
}

// watched reports whether the kubelet watches the list of any resource.
func (t *statusTracker) watched() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.watchers {
		if n > 0 {
			return true
		}
	}
	return false
}

// Status returns the current state. It may be called at any time.
func (a *Advertiser) Status() Status {
	t := a.status
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Status{Devices: slices.Clone(t.devices)}
	for name, pools := range t.pools {
		r := ResourceStatus{Name: name, Registered: t.watchers[name] > 0}
		pool, _ := pools.current()
		for _, g := range pool.gpus {
			r.GPUs = append(r.GPUs, GPUStatus{
				InstanceID: g.instanceID, LocationPath: t.locationPaths[normalizeID(g.instanceID)],
				Healthy: g.usable(), Replicas: g.replicas,
			})
		}
		s.Resources = append(s.Resources, r)
	}
	slices.SortFunc(s.Resources, func(a, b ResourceStatus) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// maxSilence is how long discovery may take before the advertiser counts as hanging.
const maxSilence = 2 * time.Minute

// Alive returns an error if the advertiser hangs. It may be called at any time.
func (a *Advertiser) Alive() error {
	a.status.mu.Lock()
	defer a.status.mu.Unlock()
	if last := a.status.lastLook; !last.IsZero() && a.now().Sub(last) > maxSilence {
		return fmt.Errorf("discovery of the GPUs hangs since %s", a.now().Sub(last).Round(time.Second))
	}
	return nil
}

// Registered returns an error if the kubelet does not watch the lists of all
// resources, or not all GPUs can be offered. It may be called at any time.
func (a *Advertiser) Registered() error {
	status := a.Status()
	if len(status.Resources) == 0 {
		return errors.New("no resource is offered yet")
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
	a.status.mu.Lock()
	defer a.status.mu.Unlock()
	return a.status.problem
}
