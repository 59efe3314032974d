package decision

import (
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/decision/extramounts"
	"github.com/directx-nri/directx-nri/discovery"
)

// extraMounts returns the extra mounts that the container requests in addition to the
// mounts given.
func (d *Decider) extraMounts(request Request, devices []discovery.Device, given []specs.Mount) ([]specs.Mount, error) {
	var files []extramounts.Entry
	var origins []string
	for _, list := range request.extraMounts {
		if !request.honors(list, d.Policy) {
			continue
		}
		if list.variable && !d.Policy.ExtraMounts.Configured {
			return nil, WithReason(ReasonPolicy, fmt.Errorf("extra mounts: %s has no effect unless the configuration sets extraMounts.sources; use the annotation %s", ExtraMountsVariable, ExtraMountsAnnotation))
		}
		parsed, err := extramounts.Parse(list.origin, list.text)
		if err != nil {
			return nil, WithReason(ReasonPolicy, fmt.Errorf("extra mounts: %w; correct it", err))
		}
		files, origins = append(files, parsed...), append(origins, list.origin)
	}
	policy := extramounts.Policy{ExtraMounts: d.Policy.ExtraMounts, OS: request.Container.OS, Files: d.Files}
	mounts, err := policy.Mounts(files, devices, given)
	if err != nil {
		return nil, WithReason(ReasonPolicy, fmt.Errorf("extra mounts (%s): %w", strings.Join(origins, ", "), err))
	}
	return mounts, nil
}
