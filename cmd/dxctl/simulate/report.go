package simulate

import "encoding/json"

// Report is what a simulation came to. The names of its fields are for scripts,
// and stay.
type Report struct {
	// Injection is who gives containers their GPUs, as config.yaml has it.
	Injection string `json:"injection"`
	// AssignmentMode is how Windows containers are given them: location-path or
	// class-guid.
	AssignmentMode string `json:"assignmentMode"`
	// ReplicasPerGPU is how many containers may share a GPU, 0 where not all rules
	// say the same.
	ReplicasPerGPU int `json:"replicasPerGPU,omitempty"`
	// Resources are what the kubelet is offered.
	Resources []Resource `json:"resources"`
	// Notes are what the node says of its GPUs in its log.
	Notes []string `json:"notes,omitempty"`
	Pods  []Pod    `json:"pods"`
}

// Failed returns how many pods would not run.
func (r Report) Failed() int {
	n := 0
	for _, p := range r.Pods {
		if p.State != StateStarts {
			n++
		}
	}
	return n
}

// Resource is an extended resource and the GPUs that are offered by it.
type Resource struct {
	Name string `json:"name"`
	// Allocatable is how many replicas the node has to give.
	Allocatable int   `json:"allocatable"`
	GPUs        []GPU `json:"gpus"`
}

// GPU is a GPU that is offered.
type GPU struct {
	InstanceID   string `json:"instanceID"`
	Description  string `json:"description,omitempty"`
	LocationPath string `json:"locationPath,omitempty"`
	// Health is "healthy", or why the GPU cannot be allocated.
	Health string `json:"health"`
	// Replicas are the device IDs that the kubelet knows.
	Replicas []string `json:"replicas"`
}

// States of a pod and of a container.
const (
	// StateStarts: all is well.
	StateStarts = "starts"
	// StatePending: the scheduler finds no place for the pod on this node.
	StatePending = "pending"
	// StateRejected: the kubelet does not admit the pod.
	StateRejected = "rejected"
	// StateRefused: the container's start is refused, by us, or the pod has such a
	// container.
	StateRefused = "refused"
	// StateWaits: an init container before this one does not start.
	StateWaits = "waits"
)

// Pod is a pod and what becomes of it.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	OS        string `json:"os"`
	State     string `json:"state"`
	// Reason says why the pod does not run, in the words of whoever says so.
	Reason     string      `json:"reason,omitempty"`
	Notes      []string    `json:"notes,omitempty"`
	Containers []Container `json:"containers,omitempty"`
}

// Container is a container and what it gets.
type Container struct {
	Name string `json:"name"`
	// Kind is container, init or sidecar.
	Kind        string       `json:"kind"`
	State       string       `json:"state"`
	Reason      string       `json:"reason,omitempty"`
	Notes       []string     `json:"notes,omitempty"`
	Allocations []Allocation `json:"allocations,omitempty"`
	// Before is the OCI spec as containerd writes it, After as the container gets
	// it, nil when it is not started.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

// Allocation is what a container was allocated of one resource.
type Allocation struct {
	Resource string `json:"resource"`
	// Variable is what presents the allocation, and Token its value. Tokens are
	// random on a node: this one only stands for it. There are none where the kubelet
	// gives containers their GPUs.
	Variable string    `json:"variable,omitempty"`
	Token    string    `json:"token,omitempty"`
	Record   string    `json:"record,omitempty"`
	Replicas []Replica `json:"replicas"`
}

// Replica is one replica of a GPU.
type Replica struct {
	ID           string `json:"id"`
	InstanceID   string `json:"instanceID"`
	Description  string `json:"description,omitempty"`
	LocationPath string `json:"locationPath,omitempty"`
}
