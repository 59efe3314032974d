package decision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/ocispec"
)

// A standalone container's request for GPUs: all, none, or a list, parted by
// commas, of indices, location paths and LUIDs. The annotation, which no image
// brings along, counts more than the variable.
const (
	VisibleVariable   = "DIRECTX_VISIBLE_DEVICES"
	VisibleAnnotation = "directx.microsoft.com/visible-devices"

	visibleAll  = "all"
	visibleNone = "none"
)

var (
	errOutsidePod  = errors.New("it presents an allocation and belongs to no pod")
	errNoSuchGPU   = errors.New("no GPU of this node matches")
	errBadRequest  = errors.New("the request cannot be understood")
	errUnknownGPUs = errors.New("the GPUs of this node are not known")
)

// asked decides for a standalone container.
func (d *Decider) asked(ctx context.Context, c Container) (Outcome, bool, error) {
	if shown := presented(c.OS, c.Env); len(shown) > 0 {
		return Outcome{}, false, fmt.Errorf("%s: %w; remove variables that begin with %s: outside Kubernetes a container asks with %s",
			shown[0].variable, errOutsidePod, allocation.EnvPrefix, VisibleVariable)
	}
	name, request := visible(c)
	has := assigned(c.Devices)
	switch {
	case strings.EqualFold(request, visibleNone), request == "" && !has.any():
		return Outcome{}, false, nil
	case request != "" && c.HyperV:
		return Outcome{}, false, fmt.Errorf("%s: %w; %s", name, errHyperV, "run it with process isolation")
	case c.HyperV:
		return Outcome{}, false, nil
	}
	present, err := d.source().Devices(ctx)
	if err != nil {
		return Outcome{}, false, fmt.Errorf("%w, so that it cannot be given their runtime files: %w; %s=%s starts it as it is",
			errUnknownGPUs, err, VisibleVariable, visibleNone)
	}
	devices, err := Select(request, present)
	if err != nil {
		return Outcome{}, false, fmt.Errorf("%s: %w", name, err)
	}
	devices = union(devices, has.of(present))
	if len(devices) == 0 {
		// What it has is no GPU.
		return Outcome{}, false, nil
	}
	outcome, err := d.give(c, devices)
	if err != nil {
		return Outcome{}, false, err
	}
	if has.class {
		// The class has each of them already.
		outcome.Edits.WindowsDevices = nil
	}
	return outcome, true, nil
}

// visible returns what a standalone container asks for and by what name, "" when
// it asks for nothing.
func visible(c Container) (name, request string) {
	if value := strings.TrimSpace(c.Annotations[VisibleAnnotation]); value != "" {
		return "annotation " + VisibleAnnotation, value
	}
	request, _ = lookup(c, VisibleVariable)
	return VisibleVariable, strings.TrimSpace(request)
}

// Select returns the GPUs of present that request names, each once, in its
// order: [VisibleVariable] says how it is written. Its errors are for a person,
// and list what there is.
func Select(request string, present []discovery.Device) ([]discovery.Device, error) {
	switch {
	case request == "":
		return nil, nil
	case strings.EqualFold(request, visibleAll):
		usable := slices.DeleteFunc(slices.Clone(present), func(d discovery.Device) bool { return unusable(d) != nil })
		if len(usable) == 0 {
			return nil, fmt.Errorf("%w %q: %s", errNoSuchGPU, request, list(present))
		}
		return usable, nil
	}
	var devices []discovery.Device
	for selector := range strings.SplitSeq(request, ",") {
		selector = strings.TrimSpace(selector)
		if selector == "" || strings.EqualFold(selector, visibleAll) || strings.EqualFold(selector, visibleNone) {
			return nil, fmt.Errorf("%w: %q; write %s, %s, or a list of indices, location paths and LUIDs parted by commas", errBadRequest, request, visibleAll, visibleNone)
		}
		device, ok := find(selector, present)
		if !ok {
			return nil, fmt.Errorf("%w %q: %s", errNoSuchGPU, selector, list(present))
		}
		if err := unusable(device); err != nil {
			return nil, fmt.Errorf("%q is GPU %s, and %w; %s", selector, device.Name(), err, list(present))
		}
		devices = union(devices, []discovery.Device{device})
	}
	return devices, nil
}

// find returns the GPU that selector names: its index in the node's list, its
// LUID in hexadecimal, its location path, or its instance ID where it has none.
func find(selector string, present []discovery.Device) (discovery.Device, bool) {
	if index, err := strconv.ParseUint(selector, 10, 32); err == nil {
		if index >= uint64(len(present)) {
			return discovery.Device{}, false
		}
		return present[index], true
	}
	luid, isLUID := discovery.ParseLUID(selector)
	i := slices.IndexFunc(present, func(d discovery.Device) bool {
		return isLUID && luid != 0 && d.LUID == luid || strings.EqualFold(d.Name(), selector)
	})
	if i < 0 {
		return discovery.Device{}, false
	}
	return present[i], true
}

// unusable returns why d cannot be given to a container, nil when it can.
func unusable(d discovery.Device) error {
	switch {
	case !d.Health.OK():
		return fmt.Errorf("%w: %s", ErrDeviceFailed, d.Health)
	case d.Software:
		return fmt.Errorf("%w: it is a software renderer", ErrDeviceFailed)
	case d.Kind() == discovery.KindNone:
		return fmt.Errorf("%w: it supports neither graphics nor compute", ErrDeviceFailed)
	}
	return nil
}

// list describes the node's GPUs in one line.
func list(present []discovery.Device) string {
	if len(present) == 0 {
		return "this node has no GPU"
	}
	texts := make([]string, len(present))
	for i, d := range present {
		var more []string
		if d.Description != "" {
			more = append(more, d.Description)
		}
		if d.LUID != 0 {
			more = append(more, "LUID "+d.LUID.String())
		}
		if err := unusable(d); err != nil {
			more = append(more, err.Error())
		}
		texts[i] = fmt.Sprintf("%d %s", i, d.Name())
		if len(more) > 0 {
			texts[i] += " (" + strings.Join(more, ", ") + ")"
		}
	}
	return "this node has " + strings.Join(texts, ", ")
}

// union appends those of more that devices has not.
func union(devices, more []discovery.Device) []discovery.Device {
	for _, d := range more {
		if _, ok := discovery.Find(devices, d.InstanceID); !ok {
			devices = append(devices, d)
		}
	}
	return devices
}

// assignment is what a container's spec has of Windows devices already.
type assignment struct {
	// class: the interface class of all GPUs.
	class bool
	// paths are location paths.
	paths []string
}

func assigned(devices []specs.WindowsDevice) assignment {
	var a assignment
	for _, d := range devices {
		switch d.IDType {
		case ocispec.IDTypeLocationPath:
			a.paths = append(a.paths, d.ID)
		case ocispec.IDTypeClass, ocispec.IDTypeClassGUID:
			a.class = a.class || strings.EqualFold(strings.Trim(d.ID, "{}"), ocispec.DisplayClass)
		}
	}
	return a
}

func (a assignment) any() bool { return a.class || len(a.paths) > 0 }

// of returns the GPUs of the node among a. A path may be that of a device
// which is no GPU.
func (a assignment) of(present []discovery.Device) []discovery.Device {
	return slices.DeleteFunc(slices.Clone(present), func(d discovery.Device) bool {
		if d.LocationPath == "" {
			return true
		}
		named := slices.ContainsFunc(a.paths, func(p string) bool { return strings.EqualFold(p, d.LocationPath) })
		return !named && (!a.class || unusable(d) != nil)
	})
}
