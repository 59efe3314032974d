package deviceplugin

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/discovery"
	"github.com/directx-nri/directx-nri/internal/resources"
)

// publishPools publishes the pools for devices and live records. It returns [ErrRestart] if a GPU's
// resource is not that of this run. If a new list is too large for the kubelet, the old pool stays.
func (a *Advertiser) publishPools(devices []discovery.Device, live []allocation.Entry) error {
	assigned := resources.Assign(devices, a.config.Policy, a.config.NodeOS)
	a.logUnadvertised(assigned)
	a.config.OnDevices(assigned)
	gpus, err := a.gpusByResource(assigned, live)
	if err != nil {
		return err
	}
	var sizeErr error
	for _, name := range slices.Sorted(maps.Keys(a.servers)) {
		before, _ := a.servers[name].current()
		after := before.next(gpus[name], heldByGPU(live, name), time.Now(), a.timing.removalDelay())
		if len(after.gpus) == 0 && after.rule.Name == "" {
			a.config.Log.WithField("resource", name).Info("Restarting without the resource: it has no rule, and nothing is allocated under its name")
			return ErrRestart
		}
		if !after.sameList(before) {
			if err := after.checkSize(); err != nil {
				sizeErr = errors.Join(sizeErr, err)
				continue
			}
		}
		a.logChanges(before, after)
		a.servers[name].publish(after)
	}
	a.mu.Lock()
	a.devices, a.listSizeErr = devices, sizeErr
	a.mu.Unlock()
	a.lastPublishErr.Log(a.config.Log, sizeErr, "Cannot advertise the GPUs of this node", "All GPUs are advertised again")
	return nil
}

// gpusByResource returns the GPUs that each resource advertises, or [ErrRestart].
func (a *Advertiser) gpusByResource(assigned []resources.Assigned, live []allocation.Entry) (map[string][]gpu, error) {
	gpus := map[string][]gpu{}
	for _, d := range assigned {
		if d.Rule == nil {
			continue
		}
		id := discovery.NormalizeID(d.Device.InstanceID)
		name, replicas := d.Rule.Name, d.Rule.Replicas
		oldest, isHeld := recordUnderOtherName(live, id, name)
		var held heldReplicas
		if isHeld {
			name = oldest.Resource
			held = heldByGPU(live, name)[id]
			replicas = held.limit()
		}
		before, ok := a.resourceNames[id]
		switch {
		// The name has no server if its record could not be read when this run began.
		case ok && before != name, a.servers[name] == nil:
			a.config.Log.WithFields(logrus.Fields{"gpu": d.Device.Name(), "from": before, "to": name}).Info("Restarting to advertise the GPU under another resource name")
			return nil, ErrRestart
		case !ok && isHeld:
			a.config.Log.WithFields(logrus.Fields{"gpu": d.Device.Name(), "resource": name, "newResource": d.Rule.Name, "allocation": oldest.ID, "holder": oldest.Holder}).
				Warn("The GPU keeps its old resource name until the allocation ends")
		}
		a.resourceNames[id] = name
		g := newGPU(d.Device, replicas)
		g.onlyNumbers = held.numbers
		gpus[name] = append(gpus[name], g)
	}
	return gpus, nil
}

// recordUnderOtherName returns the oldest live record of the GPU with this normalized instance ID. ok
// is false if the GPU has no live record, or has one of resource, the name in the GPU's rule.
func recordUnderOtherName(live []allocation.Entry, instanceID, resource string) (oldest allocation.Entry, ok bool) {
	for _, record := range live {
		if !slices.ContainsFunc(record.Replicas, func(r allocation.Replica) bool { return discovery.NormalizeID(r.InstanceID) == instanceID }) {
			continue
		}
		if record.Resource == resource {
			return allocation.Entry{}, false
		}
		if !ok {
			oldest, ok = record, true
		}
	}
	return oldest, ok
}

func (a *Advertiser) logChanges(before, after *pool) {
	for _, g := range after.gpus {
		i, known := before.index[g.instanceID]
		if known && before.gpus[i].fault == g.fault && (!g.usable() || before.gpus[i].replicas == g.replicas) {
			continue
		}
		if g.usable() {
			a.logGPU(after, g).WithField("replicas", g.replicas).Info("GPU is advertised")
		} else {
			a.logGPU(after, g).WithField("fault", g.fault).Warn("GPU cannot be allocated")
		}
	}
	for _, g := range before.gpus {
		if _, known := after.index[g.instanceID]; !known {
			a.logGPU(after, g).Info("GPU is removed from the list: nothing holds it")
		}
	}
}

func (a *Advertiser) logGPU(p *pool, g gpu) *logrus.Entry {
	return a.config.Log.WithFields(logrus.Fields{"resource": p.resource, "gpu": g.name, "instanceID": g.instanceID})
}

// logUnadvertised logs why devices are not advertised, once for each reason.
func (a *Advertiser) logUnadvertised(devices []resources.Assigned) {
	before := a.unadvertised
	a.unadvertised = map[string]string{}
	for _, d := range devices {
		id := d.Device.InstanceID
		a.unadvertised[id] = d.Reason
		if d.Reason != "" && before[id] != d.Reason {
			a.config.Log.WithFields(logrus.Fields{"gpu": d.Device.Name(), "instanceID": id, "reason": d.Reason}).Info("Device is not advertised")
		}
	}
}
