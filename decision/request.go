package decision

import (
	"cmp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/decision/extramounts"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/ocispec"
)

// The request of a standalone container: all, none, or a comma-separated list of indices, location
// paths and LUIDs. The annotation, which no image can set, takes precedence over the environment
// variable, which has an effect only if the policy allows it.
const (
	VisibleVariable   = "DIRECTX_VISIBLE_DEVICES"
	VisibleAnnotation = "directx.microsoft.com/visible-devices"

	visibleAll  = "all"
	visibleNone = "none"
)

// A request for extra mounts, in the format of [extramounts.List]. The annotation
// of a pod is for all of its containers with an allocation; with a dot and a
// container's name appended it is for that container, which gets the files of both.
// (Kubernetes limits the name after the slash to 63 characters, so this works for
// container names of up to 50.) The environment variable is for standalone containers, because ctr on Windows
// drops annotations. An image can set it, too, so it has an effect only if the policy allows it.
const (
	ExtraMountsAnnotation = "directx.microsoft.com/extra-mounts"
	ExtraMountsVariable   = "DIRECTX_EXTRA_MOUNTS"
)

// Request is what a container requests, read once by [ReadRequest].
type Request struct {
	Container Container

	// allocations are the keys of the annotations of a pod's container with the IDs of its allocations.
	allocations []string
	// forged are annotations of the pod that only the kubelet may set, on the container.
	forged []string

	// visible and specGPUs are the request of a standalone container.
	visible        string
	visibleFromEnv bool // set by the environment variable, which an image can set
	specGPUs       specGPUs

	extraMounts        []extramounts.List
	extraMountsFromEnv bool
}

// ReadRequest returns the request of c. ok is false if c requests no GPU; then it must
// not be changed, whatever the state of this node.
func ReadRequest(c Container) (request Request, ok bool) {
	request = Request{Container: c}
	request.extraMounts, request.extraMountsFromEnv = extraMounts(c)
	if c.Pod != nil {
		// Without the interlock, which comes with the kubelet's annotations, they are those of a pod that was
		// annotated after the start of its sandbox, and containerd handed them on (pod_annotations).
		if c.Interlock {
			request.allocations = allocationKeys(c.Annotations)
		}
		request.forged = allocationKeys(c.PodAnnotations)
		return request, len(request.forged) > 0 || c.Interlock
	}
	request.visible, request.visibleFromEnv = visibleDevices(c)
	if strings.EqualFold(request.visible, visibleNone) {
		return request, false
	}
	request.specGPUs = findSpecGPUs(c.Devices)
	return request, request.visible != "" || request.specGPUs.any()
}

// OnlyLocationPaths reports whether the request consists of location paths in the container's spec.
// They may name devices that are not GPUs, so the container starts unchanged while the node's
// policy or GPUs are unknown.
func (r Request) OnlyLocationPaths() bool {
	return r.Container.Pod == nil && r.visible == "" && !r.specGPUs.allByClass
}

// allocationKeys returns the keys with IDs of allocations, sorted. The annotations of a pod are those of its
// sandbox, and containerd can copy them to its containers (pod_annotations).
func allocationKeys(annotations map[string]string) (keys []string) {
	for key := range annotations {
		if strings.HasPrefix(key, allocation.AnnotationPrefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// visibleDevices returns the value of [VisibleAnnotation] or [VisibleVariable] of a standalone container, ""
// if it has neither.
func visibleDevices(c Container) (value string, fromEnv bool) {
	if value, ok := c.Annotations[VisibleAnnotation]; ok {
		return cmp.Or(strings.TrimSpace(value), visibleNone), false
	}
	value, _ = ocispec.LookupEnv(c.OS, c.Env, VisibleVariable)
	return strings.TrimSpace(value), true
}

// specGPUs are the GPUs among the Windows devices of a container's spec.
type specGPUs struct {
	allByClass    bool // all GPUs, by their interface class
	locationPaths []string
}

func findSpecGPUs(devices []specs.WindowsDevice) specGPUs {
	var found specGPUs
	for _, d := range devices {
		switch d.IDType {
		case ocispec.IDTypeLocationPath:
			found.locationPaths = append(found.locationPaths, d.ID)
		case ocispec.IDTypeClass, ocispec.IDTypeClassGUID:
			found.allByClass = found.allByClass || strings.EqualFold(strings.Trim(d.ID, "{}"), ocispec.DisplayClass)
		}
	}
	return found
}

func (g specGPUs) any() bool { return g.allByClass || len(g.locationPaths) > 0 }

// filter returns the GPUs of present that are in the spec. Location paths of other devices are ignored.
func (g specGPUs) filter(present []discovery.Device) []discovery.Device {
	return slices.DeleteFunc(slices.Clone(present), func(d discovery.Device) bool {
		isPath := func(path string) bool { return strings.EqualFold(path, d.LocationPath) }
		isNamed := d.LocationPath != "" && slices.ContainsFunc(g.locationPaths, isPath)
		return !isNamed && (!g.allByClass || d.CheckUsable() != nil)
	})
}

// extraMounts returns the lists of extra mounts that c requests.
func extraMounts(c Container) (lists []extramounts.List, fromEnv bool) {
	annotations, keys := c.Annotations, []string{ExtraMountsAnnotation}
	if c.Pod != nil {
		annotations, keys = c.PodAnnotations, append(keys, ExtraMountsAnnotation+"."+c.Name)
	}
	for _, key := range keys {
		if value, ok := annotations[key]; ok {
			lists = append(lists, extramounts.List{Origin: "annotation " + key, Text: value})
		}
	}
	if c.Pod == nil && len(lists) == 0 {
		if value, _ := ocispec.LookupEnv(c.OS, c.Env, ExtraMountsVariable); value != "" {
			return []extramounts.List{{Origin: "environment variable " + ExtraMountsVariable, Text: value}}, true
		}
	}
	return lists, false
}
