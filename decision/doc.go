// Package decision decides what a container gets when it is created: edits of its spec, nothing, or a
// refusal with a remedy. Packages nri and shim describe the container to it and apply the edits in their
// own ways. In a pod, a recorded allocation is the only key to a GPU; outside Kubernetes, where only
// administrators create containers, they request GPUs by name.
package decision
