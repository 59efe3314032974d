package decision

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
)

// AllocatedDevices returns the devices with the given instance IDs, without duplicates. It is an
// error if one of them does not exist or cannot be used.
func AllocatedDevices(ctx context.Context, source discovery.Source, instanceIDs []string) ([]discovery.Device, error) {
	present, err := source.Find(ctx, instanceIDs)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnknownGPUs, err)
	}
	var devices []discovery.Device
	for _, id := range instanceIDs {
		device, ok := discovery.Find(present, id)
		if !ok {
			return nil, fmt.Errorf("GPU %s was allocated, but %w", id, errDeviceGone)
		}
		if err := unusable(device); err != nil {
			return nil, fmt.Errorf("GPU %s (%s) was allocated, but %w", device.Name(), id, err)
		}
		devices = union(devices, device)
	}
	return devices, nil
}

// unusable returns why d cannot be given to a container, nil if it can.
func unusable(d discovery.Device) error {
	switch {
	case !d.Health.OK():
		return fmt.Errorf("%w: %s", errDeviceFailed, d.Health)
	case d.Software:
		return fmt.Errorf("%w: software renderer", errDeviceFailed)
	case d.Kind() == discovery.KindNone:
		return fmt.Errorf("%w: it supports neither graphics nor compute", errDeviceFailed)
	}
	return nil
}

// Select returns the GPUs of present that request names, in its order and without
// duplicates; see [VisibleVariable] for its format. Errors list the GPUs.
func Select(request string, present []discovery.Device) ([]discovery.Device, error) {
	switch {
	case request == "":
		return nil, nil
	case strings.EqualFold(request, visibleAll):
		usable := slices.DeleteFunc(slices.Clone(present), func(d discovery.Device) bool { return unusable(d) != nil })
		if len(usable) == 0 {
			return nil, fmt.Errorf("%w %q: %s", errNoSuchGPU, request, describe(present))
		}
		return usable, nil
	}
	var devices []discovery.Device
	for selector := range strings.SplitSeq(request, ",") {
		selector = strings.TrimSpace(selector)
		if selector == "" || strings.EqualFold(selector, visibleAll) || strings.EqualFold(selector, visibleNone) {
			return nil, fmt.Errorf("%w %q; use %s, %s, or a comma-separated list of indices, location paths and LUIDs", errBadRequest, request, visibleAll, visibleNone)
		}
		i := discovery.IndexOf(present, selector)
		if i < 0 {
			return nil, fmt.Errorf("%w %q: %s", errNoSuchGPU, selector, describe(present))
		}
		device := present[i]
		if err := unusable(device); err != nil {
			return nil, fmt.Errorf("%q is GPU %s, but %w; %s", selector, device.Name(), err, describe(present))
		}
		devices = union(devices, device)
	}
	return devices, nil
}

// describe describes the GPUs of this node in one line.
func describe(present []discovery.Device) string {
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

// union appends those of more that are not in devices.
func union(devices []discovery.Device, more ...discovery.Device) []discovery.Device {
	for _, d := range more {
		if _, ok := discovery.Find(devices, d.InstanceID); !ok {
			devices = append(devices, d)
		}
	}
	return devices
}
