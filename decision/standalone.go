package decision

import (
	"context"
	"fmt"
	"strconv"

	"github.com/directx-nri/directx-nri/discovery"
)

func (d *Decider) decideStandalone(ctx context.Context, request Request) (Outcome, bool, error) {
	if len(request.tokens) > 0 {
		return Outcome{}, false, explain(request.tokens[0].variable, errOutsidePod)
	}
	visible, assigned, hyperV := request.visible, request.assigned, request.Container.HyperV
	if request.IgnoredBy(d.Policy) {
		visible.text = ""
	}
	switch {
	case visible.text == "" && !assigned.any():
		return Outcome{}, false, nil
	case hyperV && visible.text != "":
		return Outcome{}, false, explain(visible.origin, errHyperV)
	case hyperV:
		return Outcome{}, false, nil
	}
	devices, err := d.standaloneDevices(ctx, visible, assigned)
	if err != nil {
		return Outcome{}, false, err
	}
	if len(devices) == 0 {
		return Outcome{}, false, nil // The assigned devices are no GPUs.
	}
	outcome, err := d.buildOutcome(request, devices)
	if err != nil {
		return Outcome{}, false, err
	}
	if assigned.class {
		outcome.Edits.WindowsDevices = nil // The class includes them.
	}
	return outcome, true, nil
}

func (d *Decider) standaloneDevices(ctx context.Context, visible setting, assigned assignedDevices) ([]discovery.Device, error) {
	// A list of 64 GPUs takes 1.3 ms longer to read than one of them.
	if index, err := strconv.ParseUint(visible.text, 10, 31); err == nil && !assigned.any() {
		if device, ok, err := d.Source.At(ctx, int(index)); ok && err == nil && unusable(device) == nil {
			return []discovery.Device{device}, nil
		}
	}
	present, err := d.Source.Devices(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; to start the container without a GPU, set the %s to %s", errUnknownGPUs, err, visible.origin, visibleNone)
	}
	devices, err := Select(visible.text, present)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", visible.origin, err)
	}
	return union(devices, assigned.of(present)...), nil
}
