package decision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

func (d *Decider) decideStandalone(ctx context.Context, request Request) (*Outcome, error) {
	visible, inSpec, hyperV := request.visible, request.specGPUs, request.Container.HyperV
	if visible.fromEnv && !d.Policy.Standalone.Environment {
		visible = setting{}
	}
	switch {
	case visible.value == "" && !inSpec.any():
		return &Outcome{UnchangedReason: VisibleVariable + " has no effect: use the annotation " + VisibleAnnotation +
			", or set standalone.environment in the configuration"}, nil
	case hyperV && visible.value != "":
		return nil, fmt.Errorf("%s: %w", visible.origin, errHyperV)
	case hyperV:
		return &Outcome{UnchangedReason: "it is isolated by Hyper-V"}, nil
	}
	devices, err := d.standaloneDevices(ctx, visible, inSpec)
	switch {
	case errors.Is(err, discovery.ErrUnknown) && visible.value == "" && !inSpec.allByClass:
		return &Outcome{UnchangedReason: "its devices may not be GPUs, and " + errlog.Text(err)}, nil
	case errors.Is(err, discovery.ErrUnknown):
		return nil, errlog.WithRemedy(err, "to start the container without a GPU, set the "+visible.origin+" to "+visibleNone)
	case err != nil:
		return nil, err
	case len(devices) == 0:
		return &Outcome{UnchangedReason: "none of its devices is a GPU of this node"}, nil
	}
	outcome, err := d.buildOutcome(request, devices)
	if err == nil && inSpec.allByClass {
		outcome.Edits.WindowsDevices = nil // The class includes them.
	}
	return outcome, err
}

func (d *Decider) standaloneDevices(ctx context.Context, visible setting, inSpec specGPUs) ([]discovery.Device, error) {
	present, err := d.Source.Devices(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", discovery.ErrUnknown, err)
	}
	devices, err := Select(visible.value, present)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", visible.origin, err)
	}
	return appendMissing(devices, inSpec.filter(present)...), nil
}

// Select returns the GPUs of present that request names, in the order of the request and
// without duplicates. [VisibleVariable] describes the format. Errors list the GPUs.
func Select(request string, present []discovery.Device) ([]discovery.Device, error) {
	switch {
	case request == "":
		return nil, nil
	case strings.EqualFold(request, visibleAll):
		usable := slices.DeleteFunc(slices.Clone(present), func(d discovery.Device) bool { return d.CheckUsable() != nil })
		if len(usable) == 0 {
			return nil, errlog.WithRemedy(fmt.Errorf("%w %q", errNoSuchGPU, request), listGPUs(present))
		}
		return usable, nil
	}
	var devices []discovery.Device
	for selector := range strings.SplitSeq(request, ",") {
		selector = strings.TrimSpace(selector)
		if selector == "" || strings.EqualFold(selector, visibleAll) || strings.EqualFold(selector, visibleNone) {
			return nil, errlog.WithRemedy(fmt.Errorf("%w %q", errBadRequest, request), "use all, none, or a comma-separated list of indices, location paths and LUIDs")
		}
		i := discovery.IndexOf(present, selector)
		if i < 0 {
			return nil, errlog.WithRemedy(fmt.Errorf("%w %q", errNoSuchGPU, selector), listGPUs(present))
		}
		device := present[i]
		if err := device.CheckUsable(); err != nil {
			return nil, errlog.WithRemedy(fmt.Errorf("%q is GPU %s, but %w", selector, device.Name(), err), listGPUs(present))
		}
		devices = appendMissing(devices, device)
	}
	return devices, nil
}

// listGPUs returns a list of the GPUs of this node, in one line.
func listGPUs(present []discovery.Device) string {
	if len(present) == 0 {
		return "this node has no GPU"
	}
	entries := make([]string, len(present))
	for i, d := range present {
		var details []string
		if d.Description != "" {
			details = append(details, d.Description)
		}
		if d.LUID != 0 {
			details = append(details, "LUID "+d.LUID.String())
		}
		if err := d.CheckUsable(); err != nil {
			details = append(details, err.Error())
		}
		entries[i] = fmt.Sprintf("%d %s", i, d.Name())
		if len(details) > 0 {
			entries[i] += " (" + strings.Join(details, ", ") + ")"
		}
	}
	return "this node has " + strings.Join(entries, ", ")
}

// appendMissing appends those of more that are not in devices.
func appendMissing(devices []discovery.Device, more ...discovery.Device) []discovery.Device {
	for _, d := range more {
		if _, ok := discovery.Find(devices, d.InstanceID); !ok {
			devices = append(devices, d)
		}
	}
	return devices
}
