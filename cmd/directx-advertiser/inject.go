package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/advertiser"
	"directx-nri/discovery"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

// injector makes the answers to the kubelet by which containers get their GPUs
// where neither the NRI plugin nor the shim does it. They are made from the same
// edits.
type injector struct {
	source discovery.Source
	files  ocispec.Files
	os     ocispec.OS
	log    logrus.FieldLogger
	// policy is what the configuration says now.
	policy atomic.Pointer[decision.Policy]
	// held asks the kubelet which replicas each container has.
	held func(ctx context.Context, start advertiser.Start) (map[string][]string, error)
	// several tells whether a container may hold GPUs of several resources now.
	several func() bool
}

// tellLimits logs what a container misses that is given its GPUs so.
func (i *injector) tellLimits() {
	i.log.Warn("containers are given GPUs by the kubelet (injection: kubelet): there are no extra mounts, no GPUs for containers outside Kubernetes, " +
		"a container that starts again gets the files of the driver that it was admitted with, and nobody refuses one whose GPU has gone since; see docs/kubelet-injection.md")
	if i.os == ocispec.Windows && !i.policy.Load().ByClass {
		i.log.Warn("a container can have one GPU: of several devices the kubelet passes one on to containerd on Windows")
	}
}

// Inject implements [advertiser.Inject]. Where a container may hold GPUs of several
// resources there are no hints in the answer: each would tell of one resource's
// GPUs, and the kubelet keeps one hint of each name.
func (i *injector) Inject(ctx context.Context, resource string, instanceIDs []string) (*v1beta1.ContainerAllocateResponse, error) {
	return i.answer(ctx, resource, instanceIDs, i.policy.Load().VisibilityHints && !i.several())
}

func (i *injector) answer(ctx context.Context, resource string, instanceIDs []string, hinted bool) (*v1beta1.ContainerAllocateResponse, error) {
	policy := i.policy.Load()
	devices, err := decision.Lookup(ctx, i.source, policy.ByClass, instanceIDs)
	if err != nil {
		return nil, err
	}
	options := policy.Options
	options.VisibilityHints = hinted
	// The pod's own variables win: the kubelet merges them last.
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
// containerd's CRI on Windows takes devices without ContainerPath and
// Permissions only (WithWindowsDevices in pkg/cri/opts/spec_windows_opts.go of
// 1.7, and still in 2.4), and the kubelet keeps one device of those with the
// same ContainerPath. So there can be one.
func response(devices []discovery.Device, edits ocispec.Edits) (*v1beta1.ContainerAllocateResponse, error) {
	answer := &v1beta1.ContainerAllocateResponse{}
	if len(edits.WindowsDevices) > 1 {
		return nil, fmt.Errorf("%w: %d GPUs for one container, and on Windows the kubelet passes on one; ask for one, or set injection: runtime in the configuration",
			advertiser.ErrNotInjectable, len(edits.WindowsDevices))
	}
	for _, d := range edits.WindowsDevices {
		answer.Devices = append(answer.Devices, &v1beta1.DeviceSpec{HostPath: windowsHostPath(d.IDType, d.ID)})
	}
	for _, node := range edits.LinuxDevices {
		host, err := hostNode(devices, node.Path)
		if err != nil {
			return nil, err
		}
		answer.Devices = append(answer.Devices, &v1beta1.DeviceSpec{HostPath: host, ContainerPath: node.Path, Permissions: "rwm"})
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

// windowsHostPath returns a Windows device as containerd's CRI is told it. Also
// older ones know the class in this form.
func windowsHostPath(idType, id string) string {
	if idType == ocispec.IDTypeClass {
		return "class/" + id
	}
	return idType + "://" + id
}

// hostNode returns the path on the node of what devices have at path in the
// container.
func hostNode(devices []discovery.Device, path string) (string, error) {
	for _, d := range devices {
		for _, n := range d.DeviceNodes {
			if n.ContainerPath == path {
				return n.Path, nil
			}
		}
	}
	return "", fmt.Errorf("device node %s is none of the GPUs'", path)
}

// Ready refuses the start of a container whose GPUs are of several resources
// and whose answers clash: the kubelet drops one of each pair, and the container
// would start with less than it was promised. What cannot be told does not keep
// a container from starting.
func (i *injector) Ready(ctx context.Context, start advertiser.Start) error {
	held, err := i.held(ctx, start)
	if err != nil {
		i.log.WithError(err).Warn("cannot tell whether a container that starts holds GPUs of several resources; it is started")
		return nil
	}
	if len(held) < 2 {
		return nil
	}
	answers := map[string]*v1beta1.ContainerAllocateResponse{}
	for resource, replicaIDs := range held {
		var ids []string
		for _, replica := range replicaIDs {
			if id, ok := advertiser.ReplicaOf(replica); ok && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		// What the kubelet keeps for this container has no hints, whatever is
		// offered by now: see Inject.
		if answers[resource], err = i.answer(ctx, resource, ids, false); err != nil {
			return err
		}
	}
	return clash(answers)
}

var errClash = errors.New("the kubelet would pass on one of them only")

// clash returns an error when the kubelet would drop something of one of the
// answers for a container, which are by resource.
func clash(answers map[string]*v1beta1.ContainerAllocateResponse) error {
	taken := map[string]string{}
	for _, resource := range slices.Sorted(maps.Keys(answers)) {
		for key, value := range keys(answers[resource]) {
			if other, ok := taken[key]; ok && other != value {
				return fmt.Errorf("the container holds GPUs of %s, which both set the %s: %w; ask for GPUs of one resource, or set injection: runtime in the configuration",
					strings.Join(slices.Sorted(maps.Keys(answers)), " and "), key, errClash)
			}
			taken[key] = value
		}
	}
	return nil
}

// keys returns what the kubelet merges answers by, and what it stands for.
func keys(answer *v1beta1.ContainerAllocateResponse) map[string]string {
	of := map[string]string{}
	for _, d := range answer.GetDevices() {
		of[strings.TrimSpace("device "+d.GetContainerPath())] = d.GetHostPath()
	}
	for _, m := range answer.GetMounts() {
		of["mount at "+m.GetContainerPath()] = m.GetHostPath()
	}
	for name, value := range answer.GetEnvs() {
		of["variable "+name] = value
	}
	return of
}
