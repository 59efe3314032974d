package advertiser

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/policy"
)

// pool is what one resource offers: GPUs, each as a number of replicas. A pool is
// immutable; [pool.next] derives the following one.
type pool struct {
	resource string
	terms    terms
	// gpus are in the order of the source. Those that the source does not list for
	// this resource are at the end.
	gpus []gpu
	// index finds a GPU by instance ID, in the spelling of the replica IDs.
	index map[string]int
}

type gpu struct {
	// instanceID keeps the spelling in which the GPU was first allocated or seen:
	// to the kubelet a replica ID in another spelling is another device.
	instanceID string
	// name is for messages.
	name string
	// uuid is the driver's identifier, "" if unknown.
	uuid   string
	driver driver
	// numaNode is nil if unknown.
	numaNode *int
	// fault is why the GPU cannot be allocated, "" if it can.
	fault string
	// replicas is the number of replicas that can be allocated, if there is no fault.
	replicas int
	// listed is the number of replicas in the kubelet's list. It is more than
	// replicas while a record holds one with a higher number.
	listed int
	// needed is what listed must be, since is when needed changed.
	needed int
	since  time.Time
}

// driver is what GPUs must have in common to be used by one program together.
type driver struct {
	vendor  discovery.VendorID
	version string
}

// faultMissing is the fault of a GPU that is listed only because records hold it.
const faultMissing = "the GPU is no longer on this node, or belongs to another resource"

func (g gpu) usable() bool { return g.fault == "" }

// healthy is how many of the listed replicas, the first ones, can be allocated.
func (g gpu) healthy() int {
	if !g.usable() {
		return 0
	}
	return min(g.replicas, g.listed)
}

// share is a device that is offered by a resource.
type share struct {
	device   discovery.Device
	replicas int
}

// holding is what live records hold of a GPU.
type holding struct {
	instanceID string
	// replicas is one more than the highest number of a replica that is held.
	replicas int
}

// holdings returns what live records hold of each GPU as resource, by normalized
// instance ID.
func holdings(live []allocation.LiveRecord, resource string) map[string]holding {
	held := map[string]holding{}
	for _, record := range live {
		if record.Resource != resource {
			continue
		}
		for _, replica := range record.Replicas {
			_, number, _ := ParseReplicaID(replica.ID)
			key := normalizeID(replica.InstanceID)
			h := held[key]
			held[key] = holding{cmp.Or(h.instanceID, replica.InstanceID), min(max(h.replicas, number+1), policy.MaxReplicas)}
		}
	}
	return held
}

// next returns the pool that follows p, with the devices of shares. What live
// records hold stays listed, and cannot be allocated if it is not in shares.
//
// The kubelet (v1.34, pkg/kubelet/cm/devicemanager) crashes when a device that it
// has allocated is not in the list, both when Allocate returns
// (allocateContainerResources) and when it finds a container running after a restart
// (GetTopologyHints). So a replica is removed from the list when no record has held
// it for as long as patience.
func (p *pool) next(shares []share, held map[string]holding, now time.Time, patience time.Duration) *pool {
	next := &pool{resource: p.resource, terms: p.terms, gpus: make([]gpu, 0, len(shares))}
	before := make(map[string]gpu, len(p.gpus))
	for _, g := range p.gpus {
		before[normalizeID(g.instanceID)] = g
	}
	added := make(map[string]bool, len(shares))
	add := func(g gpu, key string, needed int) {
		if added[key] {
			return
		}
		added[key] = true
		old := before[key]
		g.instanceID = cmp.Or(old.instanceID, held[key].instanceID, g.instanceID)
		g.needed, g.since = needed, old.since
		if needed != old.needed {
			g.since = now
		}
		if g.listed = max(needed, old.listed); now.Sub(g.since) >= patience {
			g.listed = needed
		}
		if g.listed > 0 {
			next.gpus = append(next.gpus, g)
		}
	}
	for _, s := range shares {
		key := normalizeID(s.device.InstanceID)
		g := gpu{
			instanceID: s.device.InstanceID, name: s.device.Name(), uuid: s.device.UUID,
			driver:   driver{vendor: s.device.VendorID, version: s.device.DriverVersion},
			numaNode: s.device.NUMANode, replicas: s.replicas,
		}
		if !s.device.Health.OK() {
			g.fault = s.device.Health.Reason
		}
		add(g, key, max(s.replicas, held[key].replicas))
	}
	for _, g := range p.gpus {
		g.fault = faultMissing
		key := normalizeID(g.instanceID)
		add(g, key, held[key].replicas)
	}
	for _, key := range slices.Sorted(maps.Keys(held)) {
		id := held[key].instanceID
		add(gpu{name: id, fault: faultMissing}, key, held[key].replicas)
	}
	next.index = make(map[string]int, len(next.gpus))
	for i, g := range next.gpus {
		next.index[g.instanceID] = i
	}
	return next
}

// checkOfferable returns why a device can never be offered: its instance ID would
// not survive the way to the kubelet and back.
func checkOfferable(d discovery.Device) error {
	switch {
	case d.InstanceID == "":
		return errors.New("it has no instance ID")
	case !utf8.ValidString(d.InstanceID):
		return errors.New("its instance ID is not valid UTF-8")
	}
	return nil
}

// sameList reports whether the kubelet's lists of p and other are equal.
func (p *pool) sameList(other *pool) bool {
	return slices.EqualFunc(p.gpus, other.gpus, func(a, b gpu) bool {
		return a.instanceID == b.instanceID && a.listed == b.listed && a.healthy() == b.healthy() &&
			(a.numaNode == nil) == (b.numaNode == nil) && (a.numaNode == nil || *a.numaNode == *b.numaNode)
	})
}

// list returns the kubelet's list of p.
func (p *pool) list() *v1beta1.ListAndWatchResponse {
	response := &v1beta1.ListAndWatchResponse{}
	for _, g := range p.gpus {
		var topology *v1beta1.TopologyInfo
		if g.numaNode != nil {
			topology = &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: int64(*g.numaNode)}}}
		}
		for number := range g.listed {
			device := &v1beta1.Device{ID: replicaID(g.instanceID, number), Health: v1beta1.Unhealthy, Topology: topology}
			if number < g.healthy() {
				device.Health = v1beta1.Healthy
			}
			response.Devices = append(response.Devices, device)
		}
	}
	return response
}

// maxListBytes is the largest message that the kubelet accepts from a device plugin:
// gRPC's default (plugin/v1beta1/client.go in pkg/kubelet/cm/devicemanager, v1.34).
const maxListBytes = 4 << 20

// checkSize returns an error if the kubelet would not accept p's list, whatever the
// health of its GPUs. "Unhealthy" is the longer text.
func (p *pool) checkSize() error {
	list := p.list()
	size := proto.Size(list)
	if most := size + len(list.GetDevices())*(len(v1beta1.Unhealthy)-len(v1beta1.Healthy)); most > maxListBytes {
		return fmt.Errorf("offer %d GPUs as up to %d replicas of %s each: the list has %d bytes and the kubelet accepts %d; lower replicas in the configuration to %d",
			len(p.gpus), p.mostReplicas(), p.resource, most, maxListBytes, max(1, p.mostReplicas()*(maxListBytes/1024)/(most/1024+1)))
	}
	return nil
}

// mostReplicas returns the largest number of replicas of a GPU.
func (p *pool) mostReplicas() (most int) {
	for _, g := range p.gpus {
		most = max(most, g.replicas)
	}
	return most
}

// ErrInvalidRequest is returned for a request of the kubelet that cannot be granted,
// as opposed to a failure on the node.
var ErrInvalidRequest = errors.New("invalid request")

// find returns the index of a replica's GPU, and the replica's number.
func (p *pool) find(id string) (i, number int, err error) {
	instanceID, number, ok := ParseReplicaID(id)
	if !ok {
		return 0, 0, fmt.Errorf("%w: %q is not a replica of %s", ErrInvalidRequest, id, p.resource)
	}
	i, ok = p.index[instanceID]
	if !ok {
		return 0, 0, fmt.Errorf("%w: %q is a replica of a GPU that %s does not have on this node: delete the pod, so that it is scheduled again", ErrInvalidRequest, id, p.resource)
	}
	switch g := p.gpus[i]; {
	case number < g.replicas:
		return i, number, nil
	case !g.usable():
		return 0, 0, g.unhealthyError(id)
	default:
		return 0, 0, fmt.Errorf("%w: %q is beyond the %d replicas of its GPU: delete the pod, so that it is scheduled again, or raise replicas", ErrInvalidRequest, id, g.replicas)
	}
}

func (g gpu) unhealthyError(id string) error {
	return fmt.Errorf("%w: %q cannot be allocated: GPU %s is unhealthy (%s)", ErrInvalidRequest, id, g.name, g.fault)
}

// validate returns the replicas of one container's request, or an error that matches
// [ErrInvalidRequest] and names the first ID that cannot be allocated. The requests
// of two containers may have an ID in common: a pod's later containers take over the
// replicas of its init containers.
func (p *pool) validate(ids []string) ([]allocation.Replica, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: a container requests %s without replicas", ErrInvalidRequest, p.resource)
	}
	if err := p.checkCount(len(ids)); err != nil {
		return nil, err
	}
	seen := make(map[string]bool, len(ids))
	chosen := make([]bool, len(p.gpus))
	replicas := make([]allocation.Replica, 0, len(ids))
	for _, id := range ids {
		i, _, err := p.find(id)
		if err != nil {
			return nil, err
		}
		g := p.gpus[i]
		if !g.usable() {
			return nil, g.unhealthyError(id)
		}
		if seen[id] {
			return nil, fmt.Errorf("%w: %q is named twice for one container: delete the pod, so that it is scheduled again", ErrInvalidRequest, id)
		}
		seen[id], chosen[i] = true, true
		replicas = append(replicas, allocation.Replica{ID: id, InstanceID: g.instanceID, UUID: g.uuid})
	}
	if err := p.checkDrivers(chosen, len(ids)); err != nil {
		return nil, err
	}
	return replicas, nil
}
