package allocation

import (
	"fmt"
	"slices"
	"time"
)

// Record is the allocation of replicas of one resource to one container.
type Record struct {
	ID ID `json:"id"`
	// Sequence orders the records of a node: a newer record has a larger number. CreatedAt
	// cannot do so, because the clock may be set back.
	Sequence uint64 `json:"sequence"`
	// Resource is the extended resource's name, directx.microsoft.com/display.
	Resource string `json:"resource"`
	// Replicas are in the order of the kubelet's request.
	Replicas  []Replica `json:"replicas"`
	CreatedAt time.Time `json:"createdAt"`
}

// Holder is the container that a record is bound to.
type Holder struct {
	// PodUID and Container identify it.
	PodUID    string `json:"podUID"`
	Container string `json:"container"`
	// PodNamespace and PodName may be empty.
	PodNamespace string `json:"podNamespace,omitempty"`
	PodName      string `json:"podName,omitempty"`
}

// Same reports whether h and other are one container of one pod. A restarted container
// is the same; one of a recreated pod with the same name is not.
func (h Holder) Same(other Holder) bool {
	return h.PodUID == other.PodUID && h.Container == other.Container
}

func (h Holder) String() string {
	return fmt.Sprintf("container %q of pod %s/%s (%s)", h.Container, h.PodNamespace, h.PodName, h.PodUID)
}

// Entry is a record that has not ended, with its binding.
type Entry struct {
	Record
	// Holder is the container that the record was bound to at BoundAt. It is nil if the record
	// is not bound yet.
	Holder  *Holder
	BoundAt time.Time
}

// maxUnbound is how many records of one replica may be unbound. The oldest ends when there
// are more: otherwise, pods that are admitted and never start would fill the disk. The
// containers of a pod can share a replica, each with a record that is written at admission, so
// maxUnbound must exceed the number of containers in any pod.
const maxUnbound = 64

// ended returns the IDs of the records that have ended because of newer ones. records are sorted,
// oldest first.
func ended(records []Entry) map[ID]bool {
	// The kubelet counts replicas by resource: if a GPU moves to another resource, the kubelet can
	// allocate its replicas under both names.
	type replicaKey struct{ resource, id string }
	byReplica := map[replicaKey][]Entry{}
	for _, e := range records {
		for _, replica := range e.Replicas {
			key := replicaKey{e.Resource, replica.ID}
			byReplica[key] = append(byReplica[key], e)
		}
	}
	ids := map[ID]bool{}
	for _, ofReplica := range byReplica {
		for _, id := range supersededByNewer(ofReplica) {
			ids[id] = true
		}
	}
	return ids
}

// supersededByNewer returns the IDs of those records of one replica, oldest first, that have ended
// because of newer ones. Unbound records beyond maxUnbound have ended, too.
//
// The kubelet allocates a replica again when its pod no longer exists. It also allocates an init
// container's replica to later containers of the same pod. So a record does not end when a newer one
// is written. It ends when a newer one is bound, and the older one is
//   - bound to another pod, which no longer exists,
//   - bound to the same container, whose pod was recreated, as a static pod with its old UID, or
//   - unbound: its pod has never started, because the containers of one pod present their IDs
//     in the order of their records.
func supersededByNewer(records []Entry) (ids []ID) {
	unbound := 0
	var newerHolders []Holder
	for _, e := range slices.Backward(records) {
		if e.Holder == nil {
			unbound++
			if len(newerHolders) > 0 || unbound > maxUnbound {
				ids = append(ids, e.ID)
			}
			continue
		}
		if slices.ContainsFunc(newerHolders, func(n Holder) bool { return n.PodUID != e.Holder.PodUID || n.Same(*e.Holder) }) {
			ids = append(ids, e.ID)
			continue
		}
		newerHolders = append(newerHolders, *e.Holder)
	}
	return ids
}
