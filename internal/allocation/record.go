package allocation

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Replica is one replica of one GPU.
type Replica struct {
	// ID is the replica's device ID in the device plugin API.
	ID string `json:"id"`
	// InstanceID is the PnP instance ID of the replica's GPU.
	InstanceID string `json:"instanceID"`
	// UUID is the driver's identifier of the GPU, "" if unknown.
	UUID string `json:"uuid,omitempty"`
}

// Record is the allocation of replicas of one resource to one container.
type Record struct {
	ID ID `json:"id"`
	// Sequence orders the records of a node: a newer one has a larger number. The
	// clock may be set back, so CreatedAt does not.
	Sequence uint64 `json:"sequence"`
	// Resource is the extended resource's name, directx.microsoft.com/display.
	Resource string `json:"resource"`
	// Replicas are in the order of the kubelet.
	Replicas  []Replica `json:"replicas"`
	CreatedAt time.Time `json:"createdAt"`
	// Injected reports that the container got devices from the kubelet, and no token.
	Injected bool `json:"injected,omitempty"`
}

// Holder is the container that a record is bound to.
type Holder struct {
	// PodUID and Container identify the holder.
	PodUID    string `json:"podUID"`
	Container string `json:"container"`
	// PodNamespace and PodName may be empty.
	PodNamespace string `json:"podNamespace,omitempty"`
	PodName      string `json:"podName,omitempty"`
}

// nameOnlyPrefix begins a UID that is made of the pod's name.
const nameOnlyPrefix = "name:"

// NameOnly reports whether the UID is unknown, and PodUID is made of the pod's name.
func (h Holder) NameOnly() bool { return strings.HasPrefix(h.PodUID, nameOnlyPrefix) }

// Same reports whether h and other are one container of one pod. A restarted container
// is the same; one of a recreated pod with the same name is not.
func (h Holder) Same(other Holder) bool {
	return h.PodUID == other.PodUID && h.Container == other.Container
}

func (h Holder) String() string {
	return fmt.Sprintf("container %q of pod %s/%s (%s)", h.Container, h.PodNamespace, h.PodName, h.PodUID)
}

// Entry is a record that has not ended, with its container.
type Entry struct {
	Record
	// Holder is the container that the record is bound to, nil if none has presented
	// its token yet, or the binding cannot be read. BoundAt is when it did.
	Holder  *Holder
	BoundAt time.Time
	// HolderUnknown reports that the record is bound and its binding cannot be read.
	HolderUnknown bool
}

func oldestFirst(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.ID, b.ID))
}
