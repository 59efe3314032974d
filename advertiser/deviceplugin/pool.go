package deviceplugin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// pool has the GPUs that one resource advertises, each as a number of replicas. A pool is
// immutable; [pool.next] derives the following one.
type pool struct {
	resource string
	// rule is the first rule of the resource, the zero value if there is none. The rules of a
	// resource differ only in Match and Replicas.
	rule policy.ResourceRule
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
	// name is for messages and metrics.
	name string
	// uuid is the driver's identifier, "" if unknown.
	uuid     string
	driver   driver
	numaNode int // unknownNode if unknown
	// fault is the reason why the GPU cannot be allocated, "" if it can.
	fault string
	// allocatable are the numbers of the replicas that can be allocated unless there is a fault, sorted.
	// They are 0 to n-1, or while the GPU keeps an old resource name, those that records hold: see
	// [Plugin.Run].
	allocatable []int
	// retained are the other replicas in the kubelet's list, by number: those that a record holds, with
	// the zero time, and those that were held or allocatable until recently, with the time of the change.
	retained map[int]time.Time
}

const unknownNode = -1

// driver is what GPUs must have in common to be used by one program together.
type driver struct {
	vendor  pci.Vendor
	version string
}

// faultMissing is the fault of a GPU that is listed only because records hold it.
const faultMissing = "the GPU is not available on this node, or is advertised as another resource now"

func (g gpu) usable() bool { return g.fault == "" }

// listed returns the numbers of the replicas in the kubelet's list, sorted. The caller must not change them.
func (g gpu) listed() []int {
	if len(g.retained) == 0 {
		return g.allocatable
	}
	numbers := slices.AppendSeq(slices.Clone(g.allocatable), maps.Keys(g.retained))
	slices.Sort(numbers)
	return numbers
}

func newGPU(d discovery.Device, replicas int) gpu {
	g := gpu{
		instanceID: d.InstanceID, name: d.Name(), uuid: d.UUID, fault: d.Health.Reason,
		driver: driver{vendor: d.VendorID, version: d.DriverVersion}, numaNode: unknownNode,
		allocatable: make([]int, replicas),
	}
	if d.NUMANode != nil {
		g.numaNode = *d.NUMANode
	}
	for number := range replicas {
		g.allocatable[number] = number
	}
	return g
}

// heldReplicas are the replicas of a GPU that records hold.
type heldReplicas struct {
	instanceID string
	numbers    []int // sorted
}

// heldByGPU returns the replicas of a resource that records hold, by the normalized
// instance ID of their GPU.
func heldByGPU(records []allocation.Entry, resource string) map[string]heldReplicas {
	held := map[string]heldReplicas{}
	for _, record := range records {
		if record.Resource != resource {
			continue
		}
		for _, replica := range record.Replicas {
			_, number, _ := allocation.ParseReplicaID(replica.ID)
			key := discovery.NormalizeID(replica.InstanceID)
			h := held[key]
			h.instanceID = cmp.Or(h.instanceID, replica.InstanceID)
			if i, found := slices.BinarySearch(h.numbers, number); !found {
				h.numbers = slices.Insert(h.numbers, i, number)
			}
			held[key] = h
		}
	}
	return held
}

// next returns the pool that follows p, with the GPUs that are advertised now. A replica
// that a record holds stays listed. If its GPU is no longer advertised, it cannot be allocated.
//
// The kubelet (v1.34, pkg/kubelet/cm/devicemanager) crashes when a device that it has allocated is
// not in the list, both when Allocate returns (allocateContainerResources) and when it finds a
// container running after a restart (GetTopologyHints). So a replica is removed from the list when it
// has not been held, and could not be allocated, for as long as removalDelay.
func (p *pool) next(gpus []gpu, held map[string]heldReplicas, now time.Time, removalDelay time.Duration) *pool {
	next := &pool{resource: p.resource, rule: p.rule, index: make(map[string]int, len(gpus))}
	before := make(map[string]gpu, len(p.gpus))
	all := slices.Clone(gpus) // those that are advertised now, then all others
	for _, g := range p.gpus {
		before[discovery.NormalizeID(g.instanceID)] = g
		all = append(all, asMissing(g))
	}
	for _, key := range slices.Sorted(maps.Keys(held)) {
		all = append(all, asMissing(newGPU(discovery.Device{InstanceID: held[key].instanceID}, 0)))
	}
	added := make(map[string]bool, len(all))
	for _, g := range all {
		key := discovery.NormalizeID(g.instanceID)
		if added[key] {
			continue
		}
		added[key] = true
		g.instanceID = cmp.Or(before[key].instanceID, held[key].instanceID, g.instanceID)
		g.retain(before[key], held[key].numbers, now, removalDelay)
		if len(g.allocatable)+len(g.retained) > 0 {
			next.index[g.instanceID] = len(next.gpus)
			next.gpus = append(next.gpus, g)
		}
	}
	return next
}

// asMissing returns g as a GPU that is not advertised any more.
func asMissing(g gpu) gpu {
	g.fault, g.allocatable = faultMissing, nil
	g.name = g.instanceID // Another GPU can have its location path.
	return g
}

// retain sets g.retained. old is the GPU in the previous pool, and held are the numbers of the replicas
// that records hold.
func (g *gpu) retain(old gpu, held []int, now time.Time, removalDelay time.Duration) {
	g.retained = map[int]time.Time{}
	for _, number := range old.listed() {
		if since := cmp.Or(old.retained[number], now); now.Sub(since) < removalDelay {
			g.retained[number] = since
		}
	}
	for _, number := range held {
		g.retained[number] = time.Time{}
	}
	for _, number := range g.allocatable {
		delete(g.retained, number)
	}
}

// sameList reports whether the kubelet's lists of p and other are equal.
func (p *pool) sameList(other *pool) bool {
	return slices.EqualFunc(p.gpus, other.gpus, func(a, b gpu) bool {
		return a.instanceID == b.instanceID && a.numaNode == b.numaNode && a.usable() == b.usable() &&
			slices.Equal(a.listed(), b.listed()) && (!a.usable() || slices.Equal(a.allocatable, b.allocatable))
	})
}

// list returns the kubelet's list of p.
func (p *pool) list() *v1beta1.ListAndWatchResponse {
	response := &v1beta1.ListAndWatchResponse{}
	for _, g := range p.gpus {
		var topology *v1beta1.TopologyInfo
		if g.numaNode != unknownNode {
			topology = &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: int64(g.numaNode)}}}
		}
		for _, number := range g.listed() {
			device := &v1beta1.Device{ID: allocation.ReplicaID(g.instanceID, number), Health: v1beta1.Unhealthy, Topology: topology}
			if _, isRetained := g.retained[number]; g.usable() && !isRetained {
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

// checkSize returns an error if the kubelet would not accept p's list when all of its GPUs are
// unhealthy. "Unhealthy" is longer than "Healthy", so p's list is never longer than that.
func (p *pool) checkSize() error {
	size, replicas := 0, 0
	for _, g := range p.gpus { // one at a time, because the whole list can take megabytes
		g.fault = faultMissing
		size += proto.Size((&pool{gpus: []gpu{g}}).list())
		replicas = max(replicas, len(g.allocatable))
	}
	if size > maxListBytes {
		return fmt.Errorf("advertise %d GPUs as up to %d replicas of %s each: the list has %d bytes and the kubelet accepts %d; lower replicas in the configuration to %d",
			len(p.gpus), replicas, p.resource, size, maxListBytes, max(1, replicas*(maxListBytes/1024)/(size/1024+1)))
	}
	return nil
}

// errInvalidRequest is returned for a request of the kubelet that cannot be granted,
// as opposed to a failure on the node.
var errInvalidRequest = errors.New("invalid request")

// find returns the index of the GPU of a replica that can be allocated, and the replica's position among
// those that can be.
func (p *pool) find(replicaID string) (i, position int, err error) {
	instanceID, number, ok := allocation.ParseReplicaID(replicaID)
	if !ok {
		return 0, 0, fmt.Errorf("%w: %q is not a replica of %s", errInvalidRequest, replicaID, p.resource)
	}
	i, ok = p.index[instanceID]
	if !ok {
		err := fmt.Errorf("%w: %q is a replica of a GPU that %s does not have on this node", errInvalidRequest, replicaID, p.resource)
		return 0, 0, errlog.WithRemedy(err, "delete the pod, so that it is scheduled again")
	}
	g := &p.gpus[i]
	position, found := number, number < len(g.allocatable) && g.allocatable[number] == number
	if !found { // The numbers have gaps, or this is none of them.
		position, found = slices.BinarySearch(g.allocatable, number)
	}
	switch {
	case !g.usable():
		return 0, 0, fmt.Errorf("%w: %q cannot be allocated: GPU %s is unhealthy (%s)", errInvalidRequest, replicaID, g.name, g.fault)
	case found:
		return i, position, nil
	case position == len(g.allocatable): // The number is too high.
		err := fmt.Errorf("%w: %q is beyond the %d replicas of its GPU", errInvalidRequest, replicaID, position)
		return 0, 0, errlog.WithRemedy(err, "delete the pod, so that it is scheduled again, or raise replicas")
	}
	return 0, 0, fmt.Errorf("%w: %q cannot be allocated: GPU %s gets another resource name when the allocations of %s end", errInvalidRequest, replicaID, g.name, p.resource)
}

// validate returns the replicas of one container's request, or an error that matches
// [errInvalidRequest] and names the first ID that cannot be allocated. The requests
// of two containers may have an ID in common: a pod's later containers take over the
// replicas of its init containers.
func (p *pool) validate(replicaIDs []string) ([]allocation.Replica, error) {
	if len(replicaIDs) == 0 {
		return nil, fmt.Errorf("%w: a container requests %s without replicas", errInvalidRequest, p.resource)
	}
	if err := p.checkCount(len(replicaIDs)); err != nil {
		return nil, err
	}
	seen := make(map[string]bool, len(replicaIDs))
	chosen := make([]bool, len(p.gpus))
	replicas := make([]allocation.Replica, 0, len(replicaIDs))
	for _, id := range replicaIDs {
		i, _, err := p.find(id)
		if err != nil {
			return nil, err
		}
		if seen[id] {
			return nil, errlog.WithRemedy(fmt.Errorf("%w: %q is requested twice for one container", errInvalidRequest, id),
				"delete the pod, so that it is scheduled again")
		}
		seen[id], chosen[i] = true, true
		replicas = append(replicas, allocation.Replica{ID: id, InstanceID: p.gpus[i].instanceID, UUID: p.gpus[i].uuid})
	}
	first := p.gpus[slices.Index(chosen, true)]
	for i, g := range p.gpus {
		if chosen[i] && g.driver != first.driver && p.rule.MixedDrivers != policy.AllowMixed {
			return nil, p.mixedDriversError(chosen, len(replicaIDs))
		}
	}
	return replicas, nil
}

// checkCount returns an error if n replicas are more than one container may have.
//
// GetPreferredAllocation and Allocate both check it: the kubelet does not call
// GetPreferredAllocation when the replicas of an init container, or those of a NUMA node,
// are exactly enough (devicesToAllocate in pkg/kubelet/cm/devicemanager, v1.34). Either
// error fails the pod's admission, and the pod's status shows the error.
func (p *pool) checkCount(n int) error {
	if limit := p.rule.MaxPerContainer; limit > 0 && n > limit {
		err := fmt.Errorf("%w: a container requests %d of %s and the limit of this node is %d", errInvalidRequest, n, p.resource, limit)
		return errlog.WithRemedy(err, "request fewer, or raise maxPerContainer of that resource in the configuration")
	}
	return nil
}

// mixedDriversError returns the error for a request of n replicas that only the chosen GPUs, which
// have different drivers, could satisfy.
func (p *pool) mixedDriversError(chosen []bool, n int) error {
	var names []string
	for i, g := range p.gpus {
		if chosen[i] {
			names = append(names, fmt.Sprintf("%s (%s, driver %s)", g.name, g.driver.vendor.Name(), cmp.Or(g.driver.version, "unknown")))
		}
	}
	err := fmt.Errorf("%w: %d of %s for one container would mix GPUs of different drivers, and a container can have the files of one: %s",
		errInvalidRequest, n, p.resource, strings.Join(names, ", "))
	return errlog.WithRemedy(err, "request fewer, wait for GPUs of one driver, or set mixedDrivers: allow for that resource in the configuration")
}
