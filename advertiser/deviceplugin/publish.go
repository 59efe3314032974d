package deviceplugin

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
)

// publishPools publishes the pools for devices and records. It returns [ErrRestart] if a GPU's
// resource is not that of this run. If a new list is too large for the kubelet, the old pool stays.
func (p *Plugin) publishPools(devices []discovery.Device, records []allocation.Entry) error {
	matched := resources.Match(devices, p.config.Policy, p.config.NodeOS)
	p.logUnadvertised(matched)
	p.config.OnDevices(matched)
	gpus, err := p.gpusByResource(matched, records)
	if err != nil {
		return err
	}
	var sizeErr error
	for _, name := range slices.Sorted(maps.Keys(p.servers)) {
		before, _ := p.servers[name].current()
		after := before.next(gpus[name], heldByGPU(records, name), time.Now(), p.timing.removalDelay())
		if len(after.gpus) == 0 && after.rule.Name == "" {
			p.config.Log.WithField("resource", name).Info("Restarting without the resource: it has no rule, and nothing is allocated under its name")
			return ErrRestart
		}
		if !after.sameList(before) {
			if err := after.checkSize(); err != nil {
				sizeErr = errors.Join(sizeErr, err)
				continue
			}
		}
		p.logChanges(before, after)
		p.servers[name].publish(after)
	}
	p.mu.Lock()
	p.devices, p.listSizeErr = devices, sizeErr
	p.mu.Unlock()
	p.lastPublishErr.Log(p.config.Log, sizeErr, "Cannot advertise the GPUs of this node", "All GPUs are advertised again")
	return nil
}

// gpusByResource returns the GPUs that each resource advertises, or [ErrRestart].
func (p *Plugin) gpusByResource(devices []resources.Device, records []allocation.Entry) (map[string][]gpu, error) {
	gpus := map[string][]gpu{}
	for _, d := range devices {
		if d.Rule == nil {
			continue
		}
		id := discovery.NormalizeID(d.InstanceID)
		g, name := newGPU(d.Device, d.Rule.Replicas), d.Rule.Name
		oldest, isHeld := recordUnderOtherName(records, id, name)
		if isHeld {
			name = oldest.Resource
			g.allocatable = heldByGPU(records, name)[id].numbers
		}
		before, ok := p.resourceNames[id]
		switch {
		// The name has no server if its record could not be read when this run began.
		case ok && before != name, p.servers[name] == nil:
			fields := logrus.Fields{"gpu": d.Name(), "from": before, "to": name}
			p.config.Log.WithFields(fields).Info("Restarting to advertise the GPU under another resource name")
			return nil, ErrRestart
		case !ok && isHeld:
			p.config.Log.WithFields(logrus.Fields{"gpu": d.Name(), "resource": name, "newResource": d.Rule.Name,
				"allocation": oldest.ID, "holder": oldest.Holder}).
				Warn("The GPU keeps its old resource name until the allocation ends")
		}
		p.resourceNames[id] = name
		gpus[name] = append(gpus[name], g)
	}
	return gpus, nil
}

// recordUnderOtherName returns the oldest record of the GPU with this normalized instance ID. ok
// is false if the GPU has no record, or has one of resource, the name in the GPU's rule.
func recordUnderOtherName(records []allocation.Entry, instanceID, resource string) (oldest allocation.Entry, ok bool) {
	for _, record := range records {
		isOfGPU := func(r allocation.Replica) bool { return discovery.NormalizeID(r.InstanceID) == instanceID }
		if !slices.ContainsFunc(record.Replicas, isOfGPU) {
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

func (p *Plugin) logChanges(before, after *pool) {
	for _, g := range after.gpus {
		i, known := before.index[g.instanceID]
		if known && before.gpus[i].fault == g.fault && (!g.usable() || len(before.gpus[i].allocatable) == len(g.allocatable)) {
			continue
		}
		if g.usable() {
			p.logGPU(after, g).WithField("replicas", len(g.allocatable)).Info("GPU is advertised")
		} else {
			p.logGPU(after, g).WithField("fault", g.fault).Warn("GPU cannot be allocated")
		}
	}
	for _, g := range before.gpus {
		if _, known := after.index[g.instanceID]; !known {
			p.logGPU(after, g).Info("GPU is removed from the list: nothing holds it")
		}
	}
}

func (p *Plugin) logGPU(of *pool, g gpu) *logrus.Entry {
	return p.config.Log.WithFields(logrus.Fields{"resource": of.resource, "gpu": g.name, "instanceID": g.instanceID})
}

// logUnadvertised logs why devices are not advertised, once for each reason.
func (p *Plugin) logUnadvertised(devices []resources.Device) {
	before := p.unadvertised
	p.unadvertised = map[string]string{}
	for _, d := range devices {
		id := d.InstanceID
		p.unadvertised[id] = d.Reason
		if d.Reason != "" && before[id] != d.Reason {
			p.config.Log.WithFields(logrus.Fields{"gpu": d.Name(), "instanceID": id, "reason": d.Reason}).Info("GPU is not advertised")
		}
	}
}
