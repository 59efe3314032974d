package decision

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

func (d *Decider) decideStandalone(ctx context.Context, request Request) (*Outcome, error) {
	visible, inSpec := request.visible, request.specGPUs
	if request.visibleFromEnv && !d.Policy.Standalone.Environment {
		visible = ""
	}
	if visible == "" && !inSpec.any() {
		return &Outcome{UnchangedReason: VisibleVariable + " has no effect: use the annotation " + VisibleAnnotation +
			", or set standalone.environment in the configuration"}, nil
	}
	if request.Container.HyperV && visible != "" {
		return nil, errHyperV
	}
	if request.Container.HyperV {
		return &Outcome{UnchangedReason: "it is isolated by Hyper-V"}, nil
	}
	present, err := d.Source.Devices(ctx)
	if err != nil {
		err = fmt.Errorf("%w: %w", discovery.ErrUnknown, err)
		if visible == "" && !inSpec.allByClass {
			return &Outcome{UnchangedReason: "its devices may not be GPUs, and " + errlog.Text(err)}, nil
		}
		return nil, err
	}
	var devices []discovery.Device
	if visible != "" {
		if devices, err = Select(visible, present); err != nil {
			return nil, err
		}
	}
	devices = appendMissing(devices, inSpec.filter(present)...)
	if len(devices) == 0 {
		return &Outcome{UnchangedReason: "none of its devices is a GPU of this node"}, nil
	}
	outcome, err := d.buildOutcome(request, devices)
	if err == nil && inSpec.allByClass {
		outcome.Edits.WindowsDevices = nil // The class includes them.
	}
	return outcome, err
}

// Select returns the GPUs of present that request names, in the order of the request and
// without duplicates. [VisibleVariable] describes the format.
func Select(request string, present []discovery.Device) ([]discovery.Device, error) {
	if strings.EqualFold(request, visibleAll) {
		usable := slices.DeleteFunc(slices.Clone(present), func(d discovery.Device) bool { return d.CheckUsable() != nil })
		if len(usable) == 0 {
			return nil, fmt.Errorf("%w %q", errNoSuchGPU, request)
		}
		return usable, nil
	}
	var devices []discovery.Device
	for selector := range strings.SplitSeq(request, ",") {
		selector = strings.TrimSpace(selector)
		i := discovery.IndexOf(present, selector)
		if i < 0 {
			return nil, fmt.Errorf("%w %q", errNoSuchGPU, selector)
		}
		device := present[i]
		if err := device.CheckUsable(); err != nil {
			return nil, fmt.Errorf("%q is GPU %s, but %w", selector, device.Name(), err)
		}
		devices = appendMissing(devices, device)
	}
	return devices, nil
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
