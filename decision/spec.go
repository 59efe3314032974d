package decision

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/ocispec"
)

// Annotations that containerd's CRI plugin sets on each container of a pod after
// all others, so that no pod can forge or remove them.
// containerd's own constants are internal in 2.x, and in 1.7 their package imports 490 others:
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/annotations/annotations.go,
// https://github.com/containerd/containerd/blob/v1.7.35/pkg/cri/annotations/annotations.go
const (
	ContainerTypeAnnotation = "io.kubernetes.cri.container-type" // "sandbox" or "container"
	SandboxIDAnnotation     = "io.kubernetes.cri.sandbox-id"
	sandboxUID              = "io.kubernetes.cri.sandbox-uid"
	sandboxName             = "io.kubernetes.cri.sandbox-name"
	sandboxNamespace        = "io.kubernetes.cri.sandbox-namespace"
	containerName           = "io.kubernetes.cri.container-name"

	ContainerTypeSandbox = "sandbox"

	// HostProcessAnnotation is "true" for containers that hcsshim runs as processes of the host.
	HostProcessAnnotation = "microsoft.com/hostprocess-container"
)

// ContainerOf returns the container of a spec. It has no annotations if it belongs to a pod: those in the
// spec can come from the pod (pod_annotations in containerd's configuration), and not from the kubelet. ok
// is false if the container never gets a GPU: it is a pod's sandbox or a host process. A host process sees
// all GPUs anyway, and hcsshim starts it without the devices of its spec, an interlock included.
func ContainerOf(info ocispec.SpecInfo, id string) (c Container, ok bool) {
	kind := info.Annotations[ContainerTypeAnnotation]
	if kind == ContainerTypeSandbox || info.HasWindows && info.Annotations[HostProcessAnnotation] == "true" {
		return Container{}, false
	}
	c = Container{OS: info.OS, ID: id, Env: info.Env, Devices: info.Devices, HyperV: info.HyperV}
	if kind == "" {
		c.Annotations = info.Annotations
	} else {
		c.Interlock = slices.ContainsFunc(info.Devices, func(d specs.WindowsDevice) bool {
			return d.IDType == allocation.InterlockDeviceType
		})
		c.Name = info.Annotations[containerName]
		c.Pod = &Pod{
			UID: info.Annotations[sandboxUID], Namespace: info.Annotations[sandboxNamespace], Name: info.Annotations[sandboxName],
		}
	}
	return c, true
}
