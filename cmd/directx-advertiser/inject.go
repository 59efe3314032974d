package main

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
	"github.com/directx-nri/directx-nri/internal/hostfiles"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/injection"
)

// injector makes the answers to the kubelet by which containers get their GPUs when
// injection is kubelet. They have the same edits as with the NRI plugin or the shim.
type injector struct {
	source  discovery.Source
	files   ocispec.Files
	os      ocispec.OS
	log     logrus.FieldLogger
	options ocispec.Options
	// containers lists the kubelet's containers.
	containers func(context.Context) ([]advertiser.ContainerDevices, error)
	// resources returns how many resources have GPUs.
	resources func() int
}

// newInjector returns the injector for the device plugin that c configures.
func newInjector(d *daemon, c *advertiser.Config, p policy.Policy) *injector {
	d.log.Warn("The kubelet gives containers their GPUs (injection: kubelet): there are no extra mounts and no GPUs for containers outside Kubernetes, " +
		"a restarted container has the driver files of its admission, and starts even if its GPU is gone; see docs/kubelet-injection.md")
	if d.nodeOS == "windows" && !p.ByClass() {
		d.log.Warn("A container can have one GPU: the kubelet passes on one device to containerd on Windows")
	}
	return &injector{
		source: c.Source, files: hostfiles.Root(d.hostRoot), os: ocispec.OS(d.nodeOS), log: d.log,
		options:    ocispec.NewOptions(p),
		containers: d.kubelet.Containers,
		resources:  func() int { return d.run.Load().device.ResourcesWithGPUs() },
	}
}

// Inject implements [advertiser.Inject]. If a container can hold GPUs of several
// resources, the answer has no visibility hints: each would name one resource's GPUs,
// and the kubelet keeps one hint of each name.
func (i *injector) Inject(ctx context.Context, resource string, instanceIDs []string) (*v1beta1.ContainerAllocateResponse, error) {
	return i.answer(ctx, resource, instanceIDs, i.options.VisibilityHints && i.resources() < 2)
}

func (i *injector) answer(ctx context.Context, resource string, instanceIDs []string, hints bool) (*v1beta1.ContainerAllocateResponse, error) {
	devices, err := decision.Lookup(ctx, i.source, i.options.ByClass, instanceIDs)
	if err != nil {
		return nil, err
	}
	for n := range devices {
		devices[n].LibraryPath = nil // It would replace the image's LD_LIBRARY_PATH.
	}
	options := i.options
	options.VisibilityHints = hints
	edits, notes, err := ocispec.BuildEdits(i.os, devices, nil, i.files, options)
	if err != nil {
		return nil, err
	}
	ocispec.LogNotes(i.log.WithField("resource", resource), notes)
	answer, err := injection.New(edits)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", advertiser.ErrNotInjectable, err)
	}
	return answer, nil
}

// Ready refuses the start of a container whose GPUs belong to several resources and
// whose answers clash: the kubelet drops one of each pair, and the container would
// start with less than it requested.
//
// The kubelet holds no lock while it waits for PreStartContainer
// (callPreStartContainerIfNeeded in pkg/kubelet/cm/devicemanager, v1.34).
func (i *injector) Ready(ctx context.Context, resource string, replicaIDs []string) error {
	containers, err := i.containers(ctx)
	found := slices.DeleteFunc(containers, func(c advertiser.ContainerDevices) bool { return !c.Holds(resource, replicaIDs) })
	switch {
	case err != nil || len(found) != 1:
		i.log.WithError(err).WithField("replicas", replicaIDs).
			Warn("A container is started without knowing whether it holds GPUs of several resources: the kubelet does not name one container, as with replicas of init containers")
		return nil
	case len(found[0].Replicas) < 2:
		return nil
	}
	taken := map[string]string{}
	for _, resource := range slices.Sorted(maps.Keys(found[0].Replicas)) {
		ids := advertiser.InstanceIDs(found[0].Replicas[resource])
		if len(ids) == 0 {
			continue // another device plugin's
		}
		// The container's own answers have no hints: see Inject.
		answer, err := i.answer(ctx, resource, ids, false)
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
	for name, value := range answer.GetEnvs() {
		keys["environment variable "+name] = value
	}
	return keys
}
