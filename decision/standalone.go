package decision

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
)

func (d *Decider) decideStandalone(ctx context.Context, request Request) (*Outcome, error) {
	if request.visibleFromEnv && !d.Policy.Standalone.Environment {
		return &Outcome{UnchangedReason: VisibleVariable + " has no effect: use the annotation " + VisibleAnnotation +
			", or set standalone.environment in the configuration"}, nil
	}
	if request.Container.HyperV {
		return nil, errHyperV
	}
	present, err := d.Source.Devices(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", discovery.ErrUnknown, err)
	}
	devices, err := Select(request.visible, present)
	if err != nil {
		return nil, err
	}
	return d.buildOutcome(request, devices)
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
		if _, ok := discovery.Find(devices, device.InstanceID); !ok {
			devices = append(devices, device)
		}
	}
	return devices, nil
}
