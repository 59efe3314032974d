package decision

import (
	"cmp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

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
// container names of up to 50.) The environment variable is for standalone containers, and
// has an effect only if the configuration sets extraMounts.sources: images can set it, too.
const (
	ExtraMountsAnnotation = "directx.microsoft.com/extra-mounts"
	ExtraMountsVariable   = "DIRECTX_EXTRA_MOUNTS"
)

// Request is what a container requests, read once by [ReadRequest].
type Request struct {
	Container Container

	// allocations are the allocations of a pod's container.
	allocations []presented
	// forged is an annotation of the pod that only the kubelet may set, on the container. "" is none.
	forged string

	// visible and specGPUs are the request of a standalone container.
	visible  setting
	specGPUs specGPUs

	extraMounts []setting
}

// presented is an annotation of a container with the ID of an allocation.
type presented struct {
	key string
	id  allocation.ID
	err error // why the value is no ID, nil if it is one
}

// setting is a string that a container sets, and where.
type setting struct {
	origin, value string
	fromEnv       bool // set by an environment variable, which an image can set
}

// ReadRequest returns the request of c. ok is false if c requests no GPU; then it must
// not be changed, whatever the state of this node.
func ReadRequest(c Container) (request Request, ok bool) {
	request = Request{Container: c}
	if c.Pod != nil {
		request.allocations, request.forged = presentedAllocations(c.Annotations), forgedKey(c.PodAnnotations)
		ok = len(request.allocations) > 0 || request.forged != "" || c.Interlock
	} else {
		if visible := visibleDevices(c); !strings.EqualFold(visible.value, visibleNone) {
			request.visible, request.specGPUs = visible, findSpecGPUs(c.Devices)
		}
		ok = request.visible.value != "" || request.specGPUs.any()
	}
	if ok {
		request.extraMounts = extraMounts(c)
	}
	return request, ok
}

// OnlyLocationPaths reports whether the request consists of location paths in the container's spec.
// They may name devices that are not GPUs, so the container starts unchanged while the node's
// policy or GPUs are unknown.
func (r Request) OnlyLocationPaths() bool {
	return r.Container.Pod == nil && r.visible.value == "" && !r.specGPUs.allByClass
}

// presentedAllocations returns the allocations that a container's annotations present, sorted by key. A
// container that has one gets its GPUs or is refused.
func presentedAllocations(annotations map[string]string) (allocations []presented) {
	for key, value := range annotations {
		if strings.HasPrefix(key, allocation.AnnotationPrefix) {
			id, err := allocation.ParseID(value)
			allocations = append(allocations, presented{key, id, err})
		}
	}
	slices.SortFunc(allocations, func(a, b presented) int { return cmp.Compare(a.key, b.key) })
	return allocations
}

// forgedKey returns the first annotation of a pod that only the kubelet may set, on a container. The
// annotations of a pod are those of its sandbox, and containerd can copy them to its containers
// (pod_annotations).
func forgedKey(podAnnotations map[string]string) (forged string) {
	for key := range podAnnotations {
		if strings.HasPrefix(key, allocation.AnnotationPrefix) && (forged == "" || key < forged) {
			forged = key
		}
	}
	return forged
}

// visibleDevices returns the setting in [VisibleAnnotation] or [VisibleVariable] of a standalone
// container. Its value is "" if the container has neither.
func visibleDevices(c Container) setting {
	if value, ok := c.Annotations[VisibleAnnotation]; ok {
		return setting{origin: "annotation " + VisibleAnnotation, value: cmp.Or(strings.TrimSpace(value), visibleNone)}
	}
	value, _ := ocispec.LookupEnv(c.OS, c.Env, VisibleVariable)
	return setting{"environment variable " + VisibleVariable, strings.TrimSpace(value), true}
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
func extraMounts(c Container) []setting {
	annotations, keys := c.Annotations, []string{ExtraMountsAnnotation}
	if c.Pod != nil {
		annotations, keys = c.PodAnnotations, append(keys, ExtraMountsAnnotation+"."+c.Name)
	}
	var lists []setting
	for _, key := range keys {
		if value, ok := annotations[key]; ok {
			lists = append(lists, setting{origin: "annotation " + key, value: value})
		}
	}
	if c.Pod == nil && len(lists) == 0 {
		if value, _ := ocispec.LookupEnv(c.OS, c.Env, ExtraMountsVariable); value != "" {
			lists = append(lists, setting{"environment variable " + ExtraMountsVariable, value, true})
		}
	}
	return lists
}
