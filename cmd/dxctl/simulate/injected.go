package simulate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/advertiser"
	"directx-nri/discovery"
	"directx-nri/internal/config"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

// injects tells that the kubelet's answers give containers their GPUs, and neither
// the NRI plugin nor the shim.
func (s *simulation) injects() bool { return s.node.Config.Injection == config.InjectByKubelet }

// inject plays the advertiser's answer: it says whether there is one. What is in it
// is added to the spec by [simulation.injected].
func (s *simulation) inject(_ context.Context, _ string, instanceIDs []string) (*v1beta1.ContainerAllocateResponse, error) {
	os := s.node.OS
	if os == "" {
		os = suits(s.devices)
	}
	edits, _, err := s.edits(os, instanceIDs)
	if err != nil {
		return nil, err
	}
	if len(edits.WindowsDevices) > 1 {
		return nil, fmt.Errorf("%w: %d GPUs for one container, and on Windows the kubelet passes on one", advertiser.ErrNotInjectable, len(edits.WindowsDevices))
	}
	return &v1beta1.ContainerAllocateResponse{}, nil
}

// edits returns what gives a container these GPUs.
func (s *simulation) edits(os ocispec.OS, instanceIDs []string) (ocispec.Edits, []ocispec.Note, error) {
	var devices []discovery.Device
	for _, id := range instanceIDs {
		if d, ok := discovery.Find(s.devices, id); ok && !slices.ContainsFunc(devices, func(other discovery.Device) bool { return other.InstanceID == d.InstanceID }) {
			devices = append(devices, d)
		}
	}
	policy := s.decider.Policy
	edits, notes, err := ocispec.Options{ByClass: policy.ByClass, RuntimeFiles: policy.RuntimeFiles}.ForDevices(os, devices, s.decider.Files)
	if err != nil {
		return ocispec.Edits{}, nil, err
	}
	// Where there are several resources the hints of one would hide the other's.
	several := len(slices.DeleteFunc(slices.Clone(s.offered), func(r Resource) bool { return len(r.GPUs) == 0 })) > 1
	if policy.VisibilityHints && !several {
		hints, err := ocispec.Hints(os, devices, nil)
		if err != nil {
			return ocispec.Edits{}, nil, err
		}
		edits.Env = append(edits.Env, hints...)
	}
	return edits, notes, nil
}

// injected returns what plays containerd for a container that was given grants: it
// writes what the kubelet's answers have into the spec.
func (s *simulation) injected(os ocispec.OS, grants []grant) func(context.Context, string, []byte) ([]byte, []string, error, error) {
	return func(_ context.Context, _ string, before []byte) (after []byte, notes []string, refusal, err error) {
		if len(grants) > 1 {
			notes = append(notes, "it holds GPUs of several resources: where the kubelet's answers for them clash, its start is refused, which is not played")
		}
		after = before
		for _, g := range grants {
			var ids []string
			for _, id := range g.ids {
				instanceID, _, _ := advertiser.ParseReplicaID(id)
				ids = append(ids, instanceID)
			}
			edits, left, err := s.edits(os, ids)
			if err != nil {
				return before, nil, err, nil
			}
			for _, note := range left {
				if !note.Minor {
					notes = append(notes, note.String())
				}
			}
			spec, err := ocispec.ParseSpec(after)
			if err != nil {
				return nil, nil, nil, err
			}
			if after, _, err = spec.Apply(edits); err != nil {
				return before, nil, err, nil
			}
		}
		return after, notes, nil, nil
	}
}

// unheard tells of what p asks for that nobody hears.
func (s *simulation) unheard(p pod) []string {
	if !s.injects() {
		return nil
	}
	for key := range p.annotations {
		if strings.HasPrefix(key, decision.ExtraMountsAnnotation) {
			return []string{"with injection: kubelet nobody sees the annotation " + decision.ExtraMountsAnnotation + ": there are no extra mounts"}
		}
	}
	return nil
}
