package advertiser

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/config"
)

// idSeparator stands between instance ID and number in a replica ID. Instance
// IDs may contain it, so the last one counts.
const idSeparator = "::"

// maxReplicas is the largest number of replicas of one GPU.
const maxReplicas = 1024

// replicaID returns the ID of one replica of a GPU. It depends on nothing
// else, so it is the same after every restart.
func replicaID(instanceID string, number int) string {
	return instanceID + idSeparator + strconv.Itoa(number)
}

// foldID returns what instance IDs are compared by: PnP does not regard case.
func foldID(instanceID string) string { return strings.ToUpper(instanceID) }

// ParseReplicaID returns what a replica's ID is made of: the instance ID of its
// GPU, and its number, from 0. ok is false for what is no such ID.
func ParseReplicaID(id string) (instanceID string, number int, ok bool) {
	i := strings.LastIndex(id, idSeparator)
	if i < 0 {
		return "", 0, false
	}
	digits := id[i+len(idSeparator):]
	if len(digits) == 0 || len(digits) > len("1023") || digits[0] == '0' && len(digits) > 1 {
		return "", 0, false
	}
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return "", 0, false
		}
		number = 10*number + int(c-'0')
	}
	return id[:i], number, true
}

// pool is what one resource offers: GPUs, each as a number of replicas. A pool
// never changes; the next one is made from it.
//
// Replica IDs are never kept. They are made when they are sent and taken apart
// when they come back, for 64 GPUs of 256 replicas would be 16,384 of them.
type pool struct {
	resource string
	terms    terms
	// gpus are in the order of the source, those that it no longer lists at
	// the end.
	gpus []gpu
	// index finds them by instance ID, in the spelling of the replica IDs.
	index map[string]int
	// generation changes whenever the kubelet must be told.
	generation uint64
}

// terms are how a resource's GPUs are given to containers. The rules of one name
// have them in common.
type terms struct {
	policy config.AllocationPolicy
	// maxPerContainer is 0 for no limit.
	maxPerContainer int
	// exclusive has a request for as many replicas as whole GPUs have met with
	// whole GPUs; mixed lets one container have GPUs of different drivers.
	exclusive, mixed bool
}

func termsOf(r config.Resource) terms {
	return terms{policy: r.Policy, maxPerContainer: r.MaxPerContainer, exclusive: r.ExclusiveRequests, mixed: r.MixedDrivers}
}

// share is a device that a rule puts into a resource, and how it is shared.
type share struct {
	device   discovery.Device
	replicas int
	// heldAs names another resource as which the GPU may still be held, "" when
	// there is none.
	heldAs string
}

type gpu struct {
	// instanceID is in the spelling that the GPU was first seen with, and keeps
	// it: the kubelet takes a replica ID in another one for another device.
	instanceID string
	// name is what a person knows the GPU by.
	name string
	// uuid is what its driver knows it by, "" when that is not known.
	uuid   string
	driver driver
	// numaNode is nil when it is not known.
	numaNode *int
	// fault says why the GPU cannot be allocated, "" when it can.
	fault string
	// heldAs names the resource that the GPU was in before and as which something
	// may still hold it, "" when there is none. Until then it has a fault.
	heldAs string
	// replicas is the number of replicas that the GPU is offered as.
	replicas int
	// missingSince is when the source stopped listing the GPU for this
	// resource, zero while it does.
	missingSince time.Time
	// listed is the number of replicas that the kubelet is told of. It is more
	// than replicas after that number was lowered, as long as a pod
	// holds one of those that are no longer offered.
	listed int
	// freeSince is since when nothing holds what is listed beyond the offer, or
	// anything of a missing GPU; zero while something does.
	freeSince time.Time
}

// driver is what GPUs must have in common for one program to use them together
// without surprises.
type driver struct {
	vendor  discovery.VendorID
	version string
}

// faultMissing is the fault of a GPU that the source does not list any more, or
// lists for another resource.
const faultMissing = "it is gone from this node, or another resource has it now"

func (g gpu) missing() bool { return !g.missingSince.IsZero() }
func (g gpu) usable() bool  { return g.fault == "" }

// healthy is how many of the listed replicas, the first ones, can be allocated.
func (g gpu) healthy() int {
	if !g.usable() {
		return 0
	}
	return min(g.replicas, g.listed)
}

// newPool returns the pool to begin with, before any device is known: the GPUs
// that live records name, as at least so many replicas each. The kubelet must go
// on hearing of them, whether the source lists them or not.
func newPool(resource string, replicas int, live []allocation.LiveRecord, now time.Time) *pool {
	p := &pool{resource: resource}
	held := heldReplicas(live, resource, nil)
	for _, record := range live {
		if record.Resource != resource {
			continue
		}
		for _, replica := range record.Replicas {
			key := foldID(replica.InstanceID)
			listed, first := held[key]
			if !first {
				continue
			}
			delete(held, key)
			p.gpus = append(p.gpus, gpu{
				instanceID:   replica.InstanceID,
				name:         replica.InstanceID,
				fault:        faultMissing,
				missingSince: now,
				replicas:     replicas,
				listed:       min(max(replicas, listed), maxReplicas),
			})
		}
	}
	slices.SortFunc(p.gpus, func(a, b gpu) int { return strings.Compare(a.instanceID, b.instanceID) })
	p.makeIndex()
	return p
}

// renew returns the pool after p, given what p's resource has now and on which
// terms. A GPU that is no longer among the shares stays, as one that cannot be
// allocated, until prune takes it out.
func (p *pool) renew(shares []share, on terms, now time.Time) *pool {
	next := &pool{resource: p.resource, terms: on, gpus: make([]gpu, 0, len(shares))}
	known := p.folded()
	present := make(map[string]bool, len(shares))
	for _, s := range shares {
		key := foldID(s.device.InstanceID)
		if present[key] || offerable(s.device) != nil {
			continue
		}
		present[key] = true
		before, ok := known[key]
		if !ok {
			before = gpu{instanceID: s.device.InstanceID}
		}
		next.gpus = append(next.gpus, gpu{
			instanceID: before.instanceID,
			name:       s.device.Name(),
			uuid:       s.device.UUID,
			driver:     driver{vendor: s.device.VendorID, version: s.device.DriverVersion},
			numaNode:   s.device.NUMANode,
			fault:      s.fault(),
			heldAs:     s.heldAs,
			replicas:   s.replicas,
			listed:     max(before.listed, s.replicas),
			freeSince:  before.freeSince,
		})
	}
	for _, g := range p.gpus {
		if present[foldID(g.instanceID)] {
			continue
		}
		if !g.missing() {
			// Also the patience of prune begins anew.
			g.missingSince, g.fault, g.heldAs, g.freeSince = now, faultMissing, "", time.Time{}
		}
		next.gpus = append(next.gpus, g)
	}
	return next.after(p)
}

// fault says why what is shared cannot be allocated, "" when it can.
func (s share) fault() string {
	switch {
	case !s.device.Health.OK():
		return s.device.Health.Reason
	case s.heldAs != "":
		return "it is still held as " + s.heldAs
	}
	return ""
}

// folded returns p's GPUs by folded instance ID.
func (p *pool) folded() map[string]gpu {
	known := make(map[string]gpu, len(p.gpus))
	for _, g := range p.gpus {
		known[foldID(g.instanceID)] = g
	}
	return known
}

// offerable says why a device cannot be offered whatever its health: its
// instance ID would not survive the way to the kubelet and back.
func offerable(d discovery.Device) error {
	switch {
	case d.InstanceID == "":
		return errors.New("it has no instance ID")
	case !utf8.ValidString(d.InstanceID):
		return errors.New("its instance ID is not valid UTF-8")
	}
	return nil
}

// leftovers tells whether p has anything that prune might take out.
func (p *pool) leftovers() bool {
	return slices.ContainsFunc(p.gpus, func(g gpu) bool { return g.missing() || g.listed > g.replicas })
}

// prune returns p without what nothing has held for at least patience: missing
// GPUs, and replicas beyond the number offered. held is of [heldReplicas].
//
// The patience is for the kubelet (v1.34, pkg/kubelet/cm/devicemanager). It
// looks devices that it has allocated up in our list, and crashes when one is
// not there: after Allocate has answered (allocateContainerResources), and for
// containers that it finds running after a restart (GetTopologyHints).
func (p *pool) prune(held map[string]int, now time.Time, patience time.Duration) *pool {
	next := &pool{resource: p.resource, terms: p.terms, gpus: make([]gpu, 0, len(p.gpus))}
	for _, g := range p.gpus {
		needed := held[foldID(g.instanceID)]
		asNeeded := needed > 0
		if !g.missing() {
			needed = max(g.replicas, needed)
			asNeeded = needed >= g.listed
		}
		switch {
		case asNeeded:
			g.freeSince = time.Time{}
		case g.freeSince.IsZero():
			g.freeSince = now
		case now.Sub(g.freeSince) < patience:
		case needed == 0:
			continue
		default:
			g.listed, g.freeSince = needed, time.Time{}
		}
		next.gpus = append(next.gpus, g)
	}
	return next.after(p)
}

// heldReplicas returns how many replicas of each GPU of resource must stay
// listed, by folded instance ID: one more than the highest number held. What a
// live record names is held, unless the record is bound to one of the pods that
// are gone, which are known by UID.
//
// What the kubelet says of single replicas would not do: it has several books,
// and looks up in our list what stands in any of them.
func heldReplicas(live []allocation.LiveRecord, resource string, gone map[string]bool) map[string]int {
	held := map[string]int{}
	for _, record := range live {
		if record.Resource != resource || record.Holder != nil && gone[record.Holder.PodUID] {
			continue
		}
		for _, replica := range record.Replicas {
			_, number, _ := ParseReplicaID(replica.ID)
			key := foldID(replica.InstanceID)
			held[key] = max(held[key], number+1)
		}
	}
	return held
}

// after completes p as the successor of previous.
func (p *pool) after(previous *pool) *pool {
	p.makeIndex()
	p.generation = previous.generation
	if !slices.EqualFunc(p.gpus, previous.gpus, toldAlike) {
		p.generation++
	}
	return p
}

func (p *pool) makeIndex() {
	p.index = make(map[string]int, len(p.gpus))
	for i, g := range p.gpus {
		p.index[g.instanceID] = i
	}
}

// toldAlike tells whether the kubelet is told the same of a and b.
func toldAlike(a, b gpu) bool {
	return a.instanceID == b.instanceID && a.listed == b.listed && a.healthy() == b.healthy() && sameNode(a.numaNode, b.numaNode)
}

func sameNode(a, b *int) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// ErrInvalidRequest tells a request of the kubelet's that cannot be met as it
// stands, as opposed to one that something on the node made fail.
var ErrInvalidRequest = errors.New("invalid request")

// find returns the index of the GPU and the number that a replica ID stands
// for, whether the GPU is usable or not. Its error matches [ErrInvalidRequest].
func (p *pool) find(id string) (i, number int, err error) {
	instanceID, number, ok := ParseReplicaID(id)
	if !ok {
		return 0, 0, fmt.Errorf("%w: %q is not a replica ID of %s: delete the pod, so that it is admitted afresh", ErrInvalidRequest, id, p.resource)
	}
	i, ok = p.index[instanceID]
	if !ok {
		return 0, 0, fmt.Errorf("%w: %q is a replica of a GPU that %s does not have on this node: delete the pod, so that it is admitted afresh", ErrInvalidRequest, id, p.resource)
	}
	if replicas := p.gpus[i].replicas; number >= replicas {
		return 0, 0, fmt.Errorf("%w: %q is beyond the %d replicas of its GPU: delete the pod, so that it is admitted afresh, or raise --replicas again", ErrInvalidRequest, id, replicas)
	}
	return i, number, nil
}

// validate returns the replicas that one container's request names, or an
// error that matches [ErrInvalidRequest] and names the first ID that cannot be
// allocated. The same ID in two containers' requests is no error: a pod's
// later containers take over what its init containers had.
func (p *pool) validate(ids []string) ([]allocation.Replica, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: a container asks for %s and names no replica", ErrInvalidRequest, p.resource)
	}
	if err := p.checkSize(len(ids)); err != nil {
		return nil, err
	}
	seen := make(map[string]bool, len(ids))
	given := make([]int, len(p.gpus))
	replicas := make([]allocation.Replica, 0, len(ids))
	for _, id := range ids {
		i, _, err := p.find(id)
		if err != nil {
			return nil, err
		}
		g := p.gpus[i]
		if !g.usable() {
			return nil, fmt.Errorf("%w: %q cannot be allocated, for its GPU %s has a fault (%s): mend it, or let the pod run on another node", ErrInvalidRequest, id, g.name, g.fault)
		}
		if seen[id] {
			return nil, fmt.Errorf("%w: %q is named twice for one container: delete the pod, so that it is admitted afresh", ErrInvalidRequest, id)
		}
		seen[id] = true
		given[i]++
		replicas = append(replicas, allocation.Replica{ID: id, InstanceID: g.instanceID, UUID: g.uuid})
	}
	if err := p.checkTogether(given, len(ids)); err != nil {
		return nil, err
	}
	return replicas, nil
}
