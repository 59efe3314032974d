// Package injector makes the answers to the kubelet by which containers get their GPUs when
// injection is kubelet. They have the same edits as with the NRI plugin or the shim.
package injector

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/advertiser"
	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/injection"
)

// Injector makes the answers.
type Injector struct {
	// Source has the node's GPUs as the policy assigns them: see [discovery.RequirePaths].
	Source            discovery.Source
	Files             ocispec.Files
	OS                ocispec.OS
	Policy            policy.Policy
	Log               logrus.FieldLogger
	Containers        func(context.Context) ([]advertiser.ContainerDevices, error)
	ResourcesWithGPUs func() int
}

// Inject implements [advertiser.Inject]. If a container can hold GPUs of several
// resources, the answer has no visibility hints: each would name one resource's GPUs,
// and the kubelet keeps one hint of each name.
func (i *Injector) Inject(ctx context.Context, resource string, instanceIDs []string) (*v1beta1.ContainerAllocateResponse, error) {
	p := i.Policy
	p.VisibilityHints = p.VisibilityHints && i.ResourcesWithGPUs() < 2
	return i.answer(ctx, resource, instanceIDs, p)
}

func (i *Injector) answer(ctx context.Context, resource string, instanceIDs []string, p policy.Policy) (*v1beta1.ContainerAllocateResponse, error) {
	devices, err := decision.AllocatedDevices(ctx, i.Source, instanceIDs)
	if err != nil {
		return nil, err
	}
	for n := range devices {
		devices[n].LibraryPath = nil // It would replace the image's LD_LIBRARY_PATH.
	}
	edits, notes, err := ocispec.BuildEdits(i.OS, devices, nil, i.Files, p)
	if err != nil {
		return nil, err
	}
	ocispec.LogNotes(i.Log.WithField("resource", resource), notes)
	answer, err := injection.New(edits)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", advertiser.ErrNotInjectable, err)
	}
	return answer, nil
}

// CheckReady refuses the start of a container whose GPUs belong to several resources and
// whose answers clash: the kubelet drops one of each pair, and the container would
// start with less than it requested.
//
// The kubelet holds no lock while it waits for PreStartContainer
// (callPreStartContainerIfNeeded in pkg/kubelet/cm/devicemanager, v1.34).
func (i *Injector) CheckReady(ctx context.Context, resource string, replicaIDs []string) error {
	containers, err := i.Containers(ctx)
	found := slices.DeleteFunc(containers, func(c advertiser.ContainerDevices) bool { return !c.Holds(resource, replicaIDs) })
	if err != nil || len(found) != 1 {
		i.Log.WithError(err).WithField("replicas", replicaIDs).
			Warn("A container is started without knowing whether it holds GPUs of several resources: the kubelet does not name one container, as with replicas of init containers")
		return nil
	}
	// The other resources are those of other device plugins, whose IDs can look like ours.
	ours := slices.DeleteFunc(slices.Sorted(maps.Keys(found[0].Replicas)), func(name string) bool {
		return name != resource && !slices.ContainsFunc(i.Policy.Resources, func(r policy.Resource) bool { return r.Name == name })
	})
	if len(ours) < 2 {
		return nil
	}
	withoutHints := i.Policy // The container's own answers have none, and so no variables: see Inject.
	withoutHints.VisibilityHints = false
	taken := map[string]string{}
	for _, resource := range ours {
		ids := advertiser.InstanceIDs(found[0].Replicas[resource])
		answer, err := i.answer(ctx, resource, ids, withoutHints)
		if err != nil {
			return err
		}
		for key, value := range mergeKeys(answer) {
			if other, ok := taken[key]; ok && other != value {
				return fmt.Errorf("the container holds GPUs of %s and another resource, which both set the %s: the kubelet would pass on only one of them; request GPUs of one resource, or set injection: runtime in the configuration",
					resource, key)
			}
			taken[key] = value
		}
	}
	return nil
}

// mergeKeys returns the keys by which the kubelet merges answers, with their values.
func mergeKeys(answer *v1beta1.ContainerAllocateResponse) map[string]string {
	keys := map[string]string{}
	for _, d := range answer.GetDevices() {
		keys[strings.TrimSpace("device "+d.GetContainerPath())] = d.GetHostPath()
	}
	for _, m := range answer.GetMounts() {
		keys["mount at "+m.GetContainerPath()] = m.GetHostPath()
	}
	return keys
}
