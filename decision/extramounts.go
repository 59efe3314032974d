package decision

import (
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/decision/extramounts"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/ocispec"
)

// A request for extra mounts, in the format of [extramounts.Parse]. The annotation
// of a pod is for all of its containers with an allocation; with a dot and a
// container's name appended it is for that container, which gets the files of both.
// (Kubernetes limits the name after the slash to 63 characters, so this works for
// container names of up to 50.) The variable is for standalone containers only,
// and only under a policy that an administrator has set: images can set it, too.
const (
	ExtraMountsAnnotation = "directx.microsoft.com/extra-mounts"
	ExtraMountsVariable   = "DIRECTX_EXTRA_MOUNTS"
)

// extraMountsRequest is the text of a request and where it is written.
type extraMountsRequest struct{ origin, text string }

func (d *Decider) extraMountsRequests(c Container) []extraMountsRequest {
	var requests []extraMountsRequest
	keys := []string{ExtraMountsAnnotation}
	if c.Pod != nil && c.Name != "" {
		keys = append(keys, ExtraMountsAnnotation+"."+c.Name)
	}
	for _, key := range keys {
		// For the shim, the pod's annotations are among the container's.
		text, ok := c.PodAnnotations[key]
		if !ok {
			text, ok = c.Annotations[key]
		}
		if ok {
			requests = append(requests, extraMountsRequest{"annotation " + key, text})
		}
	}
	if c.Pod == nil && len(requests) == 0 && d.readsEnvironment(c) {
		if text, _ := ocispec.LookupEnv(c.OS, c.Env, ExtraMountsVariable); text != "" {
			requests = append(requests, extraMountsRequest{ExtraMountsVariable, text})
		}
	}
	return requests
}

// extraMounts returns the extra mounts that c requests in addition to the mounts
// given.
func (d *Decider) extraMounts(c Container, devices []discovery.Device, given []specs.Mount) ([]specs.Mount, error) {
	var files []extramounts.Request
	var origins []string
	for _, request := range d.extraMountsRequests(c) {
		if request.origin == ExtraMountsVariable && !d.Policy.ExtraMounts.Configured {
			return nil, WithReason(ReasonPolicy, fmt.Errorf("extra mounts: %s has no effect unless the configuration sets extraMounts.sources; use the annotation %s", ExtraMountsVariable, ExtraMountsAnnotation))
		}
		list, err := extramounts.Parse(request.origin, request.text)
		if err != nil {
			return nil, WithReason(ReasonPolicy, fmt.Errorf("extra mounts: %w; correct it", err))
		}
		files, origins = append(files, list...), append(origins, request.origin)
	}
	policy := extramounts.Policy{ExtraMounts: d.Policy.ExtraMounts, OS: c.OS, Files: d.Files}
	mounts, err := policy.Mounts(files, devices, given)
	if err != nil {
		return nil, WithReason(ReasonPolicy, fmt.Errorf("extra mounts (%s): %w", strings.Join(origins, ", "), err))
	}
	return mounts, nil
}
