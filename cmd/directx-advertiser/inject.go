package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/advertiser"
	"directx-nri/discovery"
	"directx-nri/internal/hostfiles"
	"directx-nri/internal/policy"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

// injector makes the answers to the kubelet by which containers get their GPUs when
// injection is kubelet. They have the same edits as with the NRI plugin or the shim.
type injector struct {
	source  discovery.Source
	files   ocispec.Files
	os      ocispec.OS
	log     logrus.FieldLogger
	options ocispec.Options
	// together returns the replicas of a container that starts, by resource.
	together func(ctx context.Context, start advertiser.Start) (map[string][]string, error)
	// resources returns how many resources have GPUs.
	resources func() int
}

// newInjector returns the injector for the device plugin that c configures.
func newInjector(d *daemon, c *advertiser.Config, p policy.Policy, byClass bool) *injector {
	d.log.Warn("The kubelet gives containers their GPUs (injection: kubelet): there are no extra mounts and no GPUs for containers outside Kubernetes, " +
		"a restarted container has the driver files of its admission, and starts even if its GPU is gone; see docs/kubelet-injection.md")
	if d.nodeOS == "windows" && !byClass {
		d.log.Warn("A container can have one GPU: the kubelet passes on one device to containerd on Windows")
	}
	return &injector{
		source: c.Source, files: hostfiles.Root(d.hostRoot), os: ocispec.OS(d.nodeOS), log: d.log,
		options:  decision.PolicyOf(p, byClass).Options,
		together: d.kubelet.Together,
		resources: func() (n int) {
			device, _, _ := d.state()
			for _, r := range device.Status().Resources {
				if len(r.GPUs) > 0 {
					n++
				}
			}
			return n
		},
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
	options := i.options
	options.VisibilityHints = hints
	edits, notes, err := ocispec.BuildEdits(i.os, devices, nil, i.files, options)
	if err != nil {
		return nil, err
	}
	log := i.log.WithField("resource", resource)
	for _, note := range notes {
		if note.Minor {
			log.Debug(note)
		} else {
			log.Warn(note)
		}
	}
	return response(devices, edits)
}

// response returns edits as an answer to the kubelet.
//
// containerd's CRI on Windows accepts devices without ContainerPath and Permissions
// only (WithWindowsDevices in pkg/cri/opts/spec_windows_opts.go of 1.7, and still in
// 2.4), and the kubelet keeps one of several devices with the same ContainerPath.
func response(devices []discovery.Device, edits ocispec.Edits) (*v1beta1.ContainerAllocateResponse, error) {
	answer := &v1beta1.ContainerAllocateResponse{}
	if len(edits.WindowsDevices) > 1 {
		return nil, fmt.Errorf("%w: %d GPUs for one container, and on Windows the kubelet passes on one; request one, or set injection: runtime in the configuration",
			advertiser.ErrNotInjectable, len(edits.WindowsDevices))
	}
	for _, d := range edits.WindowsDevices {
		host := d.IDType + "://" + d.ID
		if d.IDType == ocispec.IDTypeClass {
			host = "class/" + d.ID // Older releases of containerd accept this form only.
		}
		answer.Devices = append(answer.Devices, &v1beta1.DeviceSpec{HostPath: host})
	}
	for _, n := range edits.LinuxDevices {
		host, err := hostNode(devices, n.Path)
		if err != nil {
			return nil, err
		}
		answer.Devices = append(answer.Devices, &v1beta1.DeviceSpec{HostPath: host, ContainerPath: n.Path, Permissions: "rwm"})
	}
	for _, m := range edits.Mounts {
		answer.Mounts = append(answer.Mounts, &v1beta1.Mount{HostPath: m.Source, ContainerPath: m.Destination, ReadOnly: true})
	}
	for _, variable := range edits.Env {
		name, value, _ := strings.Cut(variable, "=")
		if answer.Envs == nil {
			answer.Envs = map[string]string{}
		}
		answer.Envs[name] = value
	}
	return answer, nil
}

// hostNode returns the node's path of the device node at path in the container.
func hostNode(devices []discovery.Device, path string) (string, error) {
	for _, d := range devices {
		for _, n := range d.DeviceNodes {
			if n.ContainerPath == path {
				return n.Path, nil
			}
		}
	}
	return "", fmt.Errorf("device node %s does not belong to the GPUs", path)
}

// Ready refuses the start of a container whose GPUs belong to several resources and
// whose answers clash: the kubelet drops one of each pair, and the container would
// start with less than it requested.
func (i *injector) Ready(ctx context.Context, start advertiser.Start) error {
	held, err := i.together(ctx, start)
	if err != nil {
		i.log.WithError(err).Warn("Cannot find out whether a container holds GPUs of several resources; it is started")
		return nil
	}
	if len(held) < 2 {
		return nil
	}
	answers := map[string]*v1beta1.ContainerAllocateResponse{}
	for resource, replicas := range held {
		var ids []string
		for _, replica := range replicas {
			if id, _, ok := advertiser.ParseReplicaID(replica); ok && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		if len(ids) == 0 {
			continue // another device plugin's
		}
		// The container's own answers have no hints: see Inject.
		if answers[resource], err = i.answer(ctx, resource, ids, false); err != nil {
			return err
		}
	}
	return checkClash(answers)
}

var errClash = errors.New("the kubelet would pass on only one of them")

// checkClash returns an error if the kubelet would drop a part of one of the answers
// for a container, which are by resource.
func checkClash(answers map[string]*v1beta1.ContainerAllocateResponse) error {
	taken := map[string]string{}
	names := slices.Sorted(maps.Keys(answers))
	for _, resource := range names {
		for key, value := range mergeKeys(answers[resource]) {
			if other, ok := taken[key]; ok && other != value {
				return fmt.Errorf("the container holds GPUs of %s, which both set the %s: %w; request GPUs of one resource, or set injection: runtime in the configuration",
					strings.Join(names, " and "), key, errClash)
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
		keys["variable "+name] = value
	}
	return keys
}
