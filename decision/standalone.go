package decision

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/ocispec"
)

// The request of a standalone container: all, none, or a comma-separated list of
// indices, location paths and LUIDs. The annotation, which no image can set, takes
// precedence over the variable. On Linux, the variable counts only where the policy
// says so; on Windows always, because ctr 1.7 drops annotations there.
const (
	VisibleVariable   = "DIRECTX_VISIBLE_DEVICES"
	VisibleAnnotation = "directx.microsoft.com/visible-devices"

	visibleAll  = "all"
	visibleNone = "none"
)

// decideStandalone decides for a standalone container.
func (d *Decider) decideStandalone(ctx context.Context, c Container) (Outcome, bool, error) {
	if tokens := tokenEnv(c); len(tokens) > 0 {
		return Outcome{}, false, explain(tokens[0].variable, errOutsidePod)
	}
	name, request := visibleDevices(c, d.readsEnvironment(c))
	assigned := assignedDevices(c.Devices)
	switch {
	case strings.EqualFold(request, visibleNone), request == "" && !assigned.any():
		return Outcome{}, false, nil
	case request != "" && c.HyperV:
		return Outcome{}, false, explain(name, errHyperV)
	case c.HyperV:
		return Outcome{}, false, nil
	}
	devices, ok := d.selectByIndex(request)
	if !ok || assigned.any() {
		present, err := discovery.ByClass(d.Source, d.Policy.ByClass()).Devices(ctx)
		if err != nil {
			return Outcome{}, false, fmt.Errorf("%w, and so are the files that the container needs: %w; set the %s to %s to start it without",
				errUnknownGPUs, err, name, visibleNone)
		}
		if devices, err = Select(request, present); err != nil {
			return Outcome{}, false, fmt.Errorf("%s: %w", name, err)
		}
		devices = union(devices, assigned.of(present))
	}
	if len(devices) == 0 {
		return Outcome{}, false, nil // The assigned devices are no GPUs.
	}
	outcome, err := d.buildOutcome(c, devices)
	if err != nil {
		return Outcome{}, false, err
	}
	if assigned.class {
		outcome.Edits.WindowsDevices = nil // The class includes them.
	}
	return outcome, true, nil
}

// selectByIndex returns the GPUs of a request that is a list of indices, from a
// source that looks them up for less than the whole list costs. ok is false if the
// whole list is needed, also for an error.
func (d *Decider) selectByIndex(request string) (devices []discovery.Device, ok bool) {
	source, ok := d.Source.(interface {
		At(indices []int) ([]discovery.Device, bool, error)
	})
	if !ok {
		return nil, false
	}
	var indices []int
	for selector := range strings.SplitSeq(request, ",") {
		index, err := strconv.ParseUint(strings.TrimSpace(selector), 10, 31)
		if err != nil {
			return nil, false
		}
		indices = append(indices, int(index))
	}
	found, ok, err := source.At(indices)
	for i := range found {
		if d.Policy.ByClass() {
			found[i] = found[i].ByClass()
		}
		ok = ok && unusable(found[i]) == nil
	}
	return union(nil, found), ok && err == nil
}

// readsEnvironment reports whether c, a standalone container, can request GPUs by its
// environment.
func (d *Decider) readsEnvironment(c Container) bool {
	return c.OS == ocispec.Windows || d.Policy.StandaloneEnvironment
}

// visibleDevices returns the request of a standalone container, "" if there is
// none, and where it is written.
func visibleDevices(c Container, environment bool) (name, request string) {
	if value := strings.TrimSpace(c.Annotations[VisibleAnnotation]); value != "" {
		return "annotation " + VisibleAnnotation, value
	}
	if environment {
		value, _ := ocispec.LookupEnv(c.OS, c.Env, VisibleVariable)
		request = strings.TrimSpace(value)
	}
	return "environment variable " + VisibleVariable, request
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
			return nil, fmt.Errorf("%w %q: %s", errNoSuchGPU, request, list(present))
		}
		return usable, nil
	}
	var devices []discovery.Device
	for selector := range strings.SplitSeq(request, ",") {
		selector = strings.TrimSpace(selector)
		if selector == "" || strings.EqualFold(selector, visibleAll) || strings.EqualFold(selector, visibleNone) {
			return nil, fmt.Errorf("%w %q; use %s, %s, or a comma-separated list of indices, location paths and LUIDs", errBadRequest, request, visibleAll, visibleNone)
		}
		i := discovery.Lookup(present, selector)
		if i < 0 {
			return nil, fmt.Errorf("%w %q: %s", errNoSuchGPU, selector, list(present))
		}
		device := present[i]
		if err := unusable(device); err != nil {
			return nil, fmt.Errorf("%q is GPU %s, but %w; %s", selector, device.Name(), err, list(present))
		}
		devices = union(devices, []discovery.Device{device})
	}
	return devices, nil
}

// list describes GPUs in one line.
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

// union appends those of more that are not in devices.
func union(devices, more []discovery.Device) []discovery.Device {
	for _, d := range more {
		if _, ok := discovery.Find(devices, d.InstanceID); !ok {
			devices = append(devices, d)
		}
	}
	return devices
}

// assignment is the GPUs among the Windows devices of a container's spec.
type assignment struct {
	class bool     // all GPUs, by their interface class
	paths []string // location paths
}

func assignedDevices(devices []specs.WindowsDevice) assignment {
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

// of returns the GPUs of present that are assigned. Paths of other devices are
// ignored.
func (a assignment) of(present []discovery.Device) []discovery.Device {
	return slices.DeleteFunc(slices.Clone(present), func(d discovery.Device) bool {
		if d.LocationPath == "" {
			return true
		}
		named := slices.ContainsFunc(a.paths, func(p string) bool { return strings.EqualFold(p, d.LocationPath) })
		return !named && (!a.class || unusable(d) != nil)
	})
}
