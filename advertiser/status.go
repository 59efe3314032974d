package advertiser

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"directx-nri/internal/metrics"
)

// unwatched returns the resources whose lists the kubelet does not watch, sorted.
func (a *Advertiser) unwatched() (names []string) {
	for name, s := range a.servers {
		if !s.watched() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Node returns the current state, with the containers that hold GPUs, nil if they are
// unknown. It may be called at any time.
func (a *Advertiser) Node(containers []ContainerDevices) (n metrics.Node) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.devices {
		n.Devices = append(n.Devices, metrics.Device{Kind: cmp.Or(string(d.Kind()), "none"), Healthy: d.Health.OK()})
	}
	for _, name := range slices.Sorted(maps.Keys(a.servers)) {
		resource := metrics.Resource{Name: name, Registered: a.servers[name].watched()}
		inUse := map[string]int{}
		for _, c := range containers {
			for _, id := range c.Replicas[name] {
				instanceID, _, _ := ParseReplicaID(id)
				inUse[instanceID]++
			}
		}
		pool, _ := a.servers[name].current()
		for _, g := range pool.gpus {
			gpu := metrics.GPU{Name: g.name, Replicas: g.replicas}
			if n := inUse[g.instanceID]; containers != nil {
				gpu.InUse = &n
			}
			resource.GPUs = append(resource.GPUs, gpu)
		}
		n.Resources = append(n.Resources, resource)
	}
	return n
}

// maxSilence is how long discovery may take before the advertiser counts as hanging.
const maxSilence = 2 * time.Minute

// Alive returns an error if the advertiser hangs. It may be called at any time.
func (a *Advertiser) Alive() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if silence := a.now().Sub(a.lastLook); !a.lastLook.IsZero() && silence > maxSilence {
		return fmt.Errorf("discovery of the GPUs hangs since %s", silence.Round(time.Second))
	}
	return nil
}

// Registered returns an error if the kubelet does not watch the lists of all
// resources, or not all GPUs can be offered. It may be called at any time.
func (a *Advertiser) Registered() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	missing := a.unwatched()
	switch {
	case len(a.servers) == 0:
		return errors.New("no resource is offered yet")
	case len(missing) > 0:
		return fmt.Errorf("the kubelet does not watch %s: is it running?", strings.Join(missing, ", "))
	}
	return a.tooLarge
}
