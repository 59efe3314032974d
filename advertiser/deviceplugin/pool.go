package deviceplugin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// pool has the GPUs that one resource advertises, each as a number of replicas. A pool is
// immutable; [pool.next] derives the following one.
type pool struct {
	resource string
	// rule is the first rule of the resource, the zero value if there is none. The rules of a
	// resource differ only in Match and Replicas.
	rule policy.ResourceRule
	// gpus are in the order of the source. Those that are no longer advertised are at the end.
	gpus []gpu
	// index finds a GPU by its key.
	index map[string]int
	// list is the kubelet's list.
	list *v1beta1.ListAndWatchResponse
}

type gpu struct {
	discovery.Device
	// key is that of [allocation.GPUKey].
	key string
	// listed is the number of replicas in the kubelet's list. If the GPU is healthy, offered of them, those
	// with the lowest numbers, can be allocated, except those that are held as another resource. The others
	// in held can be, too.
	listed, offered     int
	held, heldElsewhere map[int]bool
}

// reasonMissing is why a GPU is unhealthy that is listed only because its replicas were listed or held before.
const reasonMissing = "the GPU is not available on this node"

func newGPU(d discovery.Device, replicas int) gpu {
	return gpu{Device: d, key: allocation.GPUKey(d.InstanceID), offered: replicas}
}

// hasDriverOf reports whether g and other have the same driver, so that one program can use both.
func (g gpu) hasDriverOf(other gpu) bool {
	return g.VendorID == other.VendorID && g.DriverVersion == other.DriverVersion
}

// offers reports whether the replica with a number can be allocated.
func (g gpu) offers(number int) bool {
	return g.Health.OK() && (g.held[number] || number < g.offered && !g.heldElsewhere[number])
}

// holdings are the replicas that containers hold: instance IDs of GPUs, "" if unknown, by the replicas' IDs,
// by resource.
type holdings map[string]map[string]string

// newHoldings returns the replicas that have a record, and those of the containers that the kubelet lists. With
// kubelet injection, there are no records.
func newHoldings(records []allocation.Entry, containers []containerDevices) holdings {
	h := holdings{}
	add := func(resource, id, instanceID string) {
		if h[resource] == nil {
			h[resource] = map[string]string{}
		}
		h[resource][id] = cmp.Or(instanceID, h[resource][id])
	}
	for _, record := range records {
		for _, replica := range record.Replicas {
			add(record.Resource, replica.ID, replica.InstanceID)
		}
	}
	for _, c := range containers {
		for resource, ids := range c.replicaIDs {
			for _, id := range ids {
				if _, _, ok := allocation.ParseReplicaID(id); ok { // Others are of other plugins.
					add(resource, id, "")
				}
			}
		}
	}
	return h
}

// next returns the pool that follows p. gpus are those of the node, with 0 replicas if they have another
// resource now.
//
// The kubelet (v1.34, pkg/kubelet/cm/devicemanager) crashes when a device that it has allocated is
// not in the list, both when Allocate returns (allocateContainerResources) and when it finds a
// container running after a restart (GetTopologyHints). So the list has all replicas that were ever
// in it, and those that are held. On Windows, it restarts a container only while its devices are healthy.
func (p *pool) next(gpus []gpu, held holdings) *pool {
	next := &pool{resource: p.resource, rule: p.rule, index: map[string]int{}}
	listed := map[string]int{} // the number of replicas that stay in the list, by key
	var missing []gpu
	stays := func(key, instanceID string, n int) {
		listed[key] = max(listed[key], n)
		// Another GPU can have its location path.
		d := discovery.Device{InstanceID: cmp.Or(instanceID, key), Health: discovery.Health{Reason: reasonMissing}}
		missing = append(missing, gpu{Device: d, key: key})
	}
	for _, g := range p.gpus {
		stays(g.key, g.InstanceID, g.listed)
	}
	for _, id := range slices.Sorted(maps.Keys(held[p.resource])) {
		if key, number, ok := allocation.ParseReplicaID(id); ok {
			stays(key, held[p.resource][id], number+1)
		}
	}
	for _, g := range slices.Concat(gpus, missing) {
		g.listed = max(g.offered, listed[g.key])
		if _, added := next.index[g.key]; added || g.listed == 0 {
			continue
		}
		g.held, g.heldElsewhere = map[int]bool{}, map[int]bool{}
		next.index[g.key] = len(next.gpus)
		next.gpus = append(next.gpus, g)
	}
	for resource, replicas := range held {
		for id := range replicas {
			key, number, _ := allocation.ParseReplicaID(id)
			i, ok := next.index[key]
			if !ok {
				continue
			}
			if g := next.gpus[i]; resource != p.resource {
				g.heldElsewhere[number] = true
			} else if number >= g.offered {
				g.held[number] = true
			}
		}
	}
	next.list = newList(next.gpus)
	return next
}

// newList returns the kubelet's list of GPUs.
func newList(gpus []gpu) *v1beta1.ListAndWatchResponse {
	response := &v1beta1.ListAndWatchResponse{}
	for _, g := range gpus {
		var topology *v1beta1.TopologyInfo // It is nil if it is unknown.
		if g.NUMANode != nil {
			topology = &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: int64(*g.NUMANode)}}}
		}
		for number := range g.listed {
			device := &v1beta1.Device{ID: allocation.ReplicaID(g.key, number), Health: v1beta1.Unhealthy, Topology: topology}
			if g.offers(number) {
				device.Health = v1beta1.Healthy
			}
			response.Devices = append(response.Devices, device)
		}
	}
	return response
}

// ErrInvalidRequest is returned for a request of the kubelet that cannot be granted,
// as opposed to a failure on the node.
var ErrInvalidRequest = errors.New("invalid request")

// find returns the index of the GPU and the number of a replica that can be allocated.
func (p *pool) find(replicaID string) (i, number int, err error) {
	key, number, ok := allocation.ParseReplicaID(replicaID)
	i, known := p.index[key]
	var cause string
	switch {
	case !ok || !known:
		cause = fmt.Sprintf("%s has no such replica on this node", p.resource)
	case !p.gpus[i].Health.OK():
		cause = fmt.Sprintf("GPU %s is unhealthy (%s)", p.gpus[i].Name(), p.gpus[i].Health.Reason)
	case !p.gpus[i].offers(number):
		cause = fmt.Sprintf("GPU %s has %d replicas, and those that are held as another resource are not offered", p.gpus[i].Name(), p.gpus[i].offered)
	default:
		return i, number, nil
	}
	err = fmt.Errorf("%w: %q cannot be allocated: %s", ErrInvalidRequest, replicaID, cause)
	return 0, 0, errlog.WithRemedy(err, "delete the pod, so that it is scheduled again")
}

// validate returns the replicas of one container's request, or an error that matches
// [ErrInvalidRequest] and names the first ID that cannot be allocated. The requests
// of two containers may have an ID in common: a pod's later containers take over the
// replicas of its init containers.
//
// It checks all of a request: the kubelet does not call GetPreferredAllocation when the replicas of an init
// container, or those of a NUMA node, are exactly enough (devicesToAllocate in pkg/kubelet/cm/devicemanager, v1.34).
func (p *pool) validate(replicaIDs []string) ([]allocation.Replica, error) {
	n := len(replicaIDs)
	if n == 0 {
		return nil, fmt.Errorf("%w: a container requests %s without replicas", ErrInvalidRequest, p.resource)
	}
	if limit := p.rule.MaxPerContainer; limit > 0 && n > limit {
		err := fmt.Errorf("%w: a container requests %d of %s and the limit of this node is %d", ErrInvalidRequest, n, p.resource, limit)
		return nil, errlog.WithRemedy(err, "request fewer, or raise maxPerContainer of that resource in the configuration")
	}
	var chosen []gpu
	replicas := make([]allocation.Replica, 0, n)
	for _, id := range replicaIDs {
		i, _, err := p.find(id)
		if err != nil {
			return nil, err
		}
		g := p.gpus[i]
		chosen = append(chosen, g)
		replicas = append(replicas, allocation.Replica{ID: id, InstanceID: g.InstanceID, UUID: g.UUID})
	}
	isOther := func(g gpu) bool { return !g.hasDriverOf(chosen[0]) }
	if p.rule.MixedDrivers != policy.AllowMixed && slices.ContainsFunc(chosen, isOther) {
		return nil, p.mixedDriversError(chosen)
	}
	return replicas, nil
}

// mixedDriversError returns the error for a request of replicas of these GPUs, which have different drivers.
func (p *pool) mixedDriversError(gpus []gpu) error {
	var names []string
	for _, g := range gpus {
		names = append(names, fmt.Sprintf("%s (%s, driver %s)", g.Name(), g.VendorID.Name(), cmp.Or(g.DriverVersion, "unknown")))
	}
	err := fmt.Errorf("%w: %d of %s for one container would mix GPUs of different drivers, and a container can have the files of one: %s",
		ErrInvalidRequest, len(gpus), p.resource, strings.Join(slices.Compact(names), ", "))
	return errlog.WithRemedy(err, "request fewer, wait for GPUs of one driver, or set mixedDrivers: allow for that resource in the configuration")
}
