package decision

import (
	"cmp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
)

// The request of a standalone container: all, none, or a comma-separated list of indices, location
// paths and LUIDs. The annotation, which no image can set, takes precedence over the environment
// variable. On Linux, the environment variable has an effect only if the policy allows it. On
// Windows, it always has an effect, because ctr 1.7 ignores annotations there.
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

	tokens []presentedToken
	// overridden are the tokens of annotations that no environment variable presents. The advertiser
	// sets both; an environment variable of the pod overrides the advertiser's.
	overridden []allocation.Token

	// visible and specGPUs are the request of a standalone container.
	visible  setting
	specGPUs specGPUs

	extraMounts []setting
}

// presentedToken is an environment variable for an allocation's token.
type presentedToken struct {
	variable string
	token    allocation.Token
	err      error // why the value is no token, nil if it is one
}

// setting is a string that a container sets, and where.
type setting struct {
	origin, value string
	fromEnv       bool // set by an environment variable, which an image can set
}

// ReadRequest returns the request of c. ok is false if c requests no GPU; then it must
// not be changed, whatever the state of this node.
func ReadRequest(c Container) (request Request, ok bool) {
	request = Request{Container: c, tokens: presentedTokens(c)}
	if c.Pod != nil {
		request.overridden = overriddenTokens(c.Annotations, request.tokens)
	} else if visible := visibleDevices(c); !strings.EqualFold(visible.value, visibleNone) {
		request.visible, request.specGPUs = visible, findSpecGPUs(c.Devices)
	}
	ok = len(request.tokens)+len(request.overridden) > 0 || request.visible.value != "" || request.specGPUs.any()
	if ok {
		request.extraMounts = extraMounts(c)
	}
	return request, ok
}

// PresentsAllocation reports whether the container presents the token of an allocation.
func (r Request) PresentsAllocation() bool { return len(r.tokens) > 0 }

// OnlyLocationPaths reports whether the request consists of location paths in the container's spec.
// They may name devices that are not GPUs, so the container starts unchanged while the node's
// policy or GPUs are unknown.
func (r Request) OnlyLocationPaths() bool {
	return r.Container.Pod == nil && len(r.tokens) == 0 && r.visible.value == "" && !r.specGPUs.allByClass
}

// honors reports whether p honors a setting. Only a setting in the environment of a standalone Linux
// container can be ignored.
func (r Request) honors(s setting, p policy.Resolved) bool {
	return !s.fromEnv || r.Container.OS == "windows" || p.Standalone.Environment
}

// presentedTokens returns the environment variables of c that present tokens, sorted. A
// container that has one gets the GPUs of the token's allocation or is refused.
//
// If a Service of a pod's namespace has such a name, the kubelet sets such an environment variable in
// each container. So a value that is not a token does not count in a pod, unless the container has the
// annotation of the same resource. Otherwise it counts, and the container is refused.
func presentedTokens(c Container) []presentedToken {
	var tokens []presentedToken
	for _, variable := range c.Env {
		name, value, _ := strings.Cut(variable, "=")
		// Windows ignores the case of names.
		if n := len(allocation.EnvPrefix); c.OS == "windows" && len(name) >= n && strings.EqualFold(name[:n], allocation.EnvPrefix) {
			name = strings.ToUpper(name)
		}
		if !strings.HasPrefix(name, allocation.EnvPrefix) {
			continue
		}
		token, err := allocation.ParseToken(value)
		if err == nil || c.Pod == nil || isAnnotated(c.Annotations, name) {
			tokens = append(tokens, presentedToken{name, token, err})
		}
	}
	slices.SortFunc(tokens, func(a, b presentedToken) int {
		return cmp.Or(cmp.Compare(a.variable, b.variable), cmp.Compare(a.token, b.token))
	})
	return slices.Compact(tokens)
}

// isAnnotated reports whether a container's annotations have the token that belongs in the
// environment variable.
func isAnnotated(annotations map[string]string, variable string) bool {
	for key := range annotations {
		if resource, ok := strings.CutPrefix(key, allocation.AnnotationPrefix); ok && allocation.EnvKey(resource) == variable {
			return true
		}
	}
	return false
}

// overriddenTokens returns the tokens of a container's annotations that none of
// its environment variables presents.
func overriddenTokens(annotations map[string]string, presented []presentedToken) []allocation.Token {
	var overridden []allocation.Token
	for key, value := range annotations {
		if !strings.HasPrefix(key, allocation.AnnotationPrefix) {
			continue
		}
		parsed, err := allocation.ParseToken(value)
		if err == nil && !slices.ContainsFunc(presented, func(t presentedToken) bool { return t.token == parsed }) {
			overridden = append(overridden, parsed)
		}
	}
	slices.Sort(overridden)
	return overridden
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
	var lists []setting
	keys := []string{ExtraMountsAnnotation}
	if c.Pod != nil {
		keys = append(keys, ExtraMountsAnnotation+"."+c.Name)
	}
	for _, key := range keys {
		// For the shim, the pod's annotations are among the container's.
		value, ok := c.PodAnnotations[key]
		if !ok {
			value, ok = c.Annotations[key]
		}
		if ok {
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
