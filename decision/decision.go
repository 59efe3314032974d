// Package decision decides what a container gets when it is created. The NRI
// plugin and the runtime shim make the same decisions and apply them in their own
// ways.
//
// In a pod, a recorded allocation is the only key to a GPU. Outside Kubernetes,
// only administrators create containers, and they request GPUs by name.
package decision

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/decision/extramounts"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
)

// Container is what a decision needs of a container.
type Container struct {
	OS ocispec.OS
	// ID is the runtime's ID of the container.
	ID string
	// Pod is the container's pod, nil for a standalone container.
	Pod *Pod
	// Name is the container's name in its pod.
	Name string
	// Env is the environment as NAME=value.
	Env []string
	// Annotations are the container's. PodAnnotations are those of its pod that are
	// not among them.
	Annotations, PodAnnotations map[string]string
	// Devices are the Windows devices of the container's spec.
	Devices []specs.WindowsDevice
	// HyperV means that the container has a virtual machine of its own.
	HyperV bool
	// CheckHandler returns nil if the runtime handler of the container's pod runs
	// containers that can have GPUs. It is nil where all handlers do.
	CheckHandler func(context.Context) error
}

// Pod identifies a pod. It comes from the runtime and cannot be forged.
type Pod struct{ UID, Namespace, Name string }

func (c Container) String() string {
	if c.Pod == nil {
		return fmt.Sprintf("container %q", c.ID)
	}
	return fmt.Sprintf("container %q of pod %s/%s", c.Name, c.Pod.Namespace, c.Pod.Name)
}

// Refuse returns err as the error with which the container's creation fails: one
// line that begins with our name and the container's.
func (c Container) Refuse(err error) error {
	return fmt.Errorf("directx-nri: %s is not started: %w", c, err)
}

func (c Container) fields() logrus.Fields {
	if c.Pod == nil {
		return logrus.Fields{"container": c.ID}
	}
	return logrus.Fields{"pod": c.Pod.Namespace + "/" + c.Pod.Name, "container": c.Name}
}

// RequestsGPU reports whether the container may request a GPU. It depends on c
// alone: a container for which it returns false must not be touched, whatever the
// state of this node.
func RequestsGPU(c Container) bool {
	tokens := tokenEnv(c)
	if len(tokens) > 0 {
		return true
	}
	if c.Pod != nil {
		return len(overriddenTokens(c.Annotations, tokens)) > 0
	}
	_, request := visibleDevices(c, true)
	if strings.EqualFold(request, visibleNone) {
		return false
	}
	return request != "" || assignedDevices(c.Devices).any()
}

// IgnoresRequest reports whether c is a standalone container that requests a GPU only by
// its environment, which the policy ignores: an image can set it. environment is
// [policy.Policy.StandaloneEnvironment].
func IgnoresRequest(c Container, environment bool) bool {
	_, request := visibleDevices(c, environment)
	return c.Pod == nil && c.OS != ocispec.Windows && request == "" && len(tokenEnv(c)) == 0 && RequestsGPU(c)
}

// Files answers questions about the node's files.
type Files interface {
	ocispec.Files
	extramounts.Files
}

// Decider decides what containers get.
type Decider struct {
	Source discovery.Source
	Store  *allocation.Store
	Files  Files
	Log    logrus.FieldLogger
	// Policy is as in force: see capabilities.InForce.
	Policy policy.Policy
}

// Outcome is a decision for a container that requests a GPU.
type Outcome struct {
	Devices []discovery.Device
	Edits   ocispec.Edits
	// Notes report files that the container does not get.
	Notes []ocispec.Note

	unbound []token // to be bound to holder
	holder  allocation.Holder
}

// Decide returns what container gets. ok is false if it requests nothing; then it
// must not be touched. An error means that it must not start: one line that names
// the container, the cause and the remedy.
//
// A pod's container owns its allocation from then on.
func (d *Decider) Decide(ctx context.Context, container Container) (edits ocispec.Edits, ok bool, err error) {
	outcome, ok, err := d.decide(ctx, container)
	for _, t := range outcome.unbound {
		if err == nil {
			err = explain(t.variable, d.Store.Bind(allocation.Token(t.value), outcome.holder))
		}
	}
	if err == nil && ok && ctx.Err() != nil {
		err = fmt.Errorf("too late: %w", ctx.Err())
	}
	if err != nil {
		return ocispec.Edits{}, false, container.Refuse(err)
	}
	if ok {
		d.log(container, outcome)
	} else if IgnoresRequest(container, d.Policy.StandaloneEnvironment) {
		d.Log.WithFields(container.fields()).Warnf("%s has no effect: use the annotation %s, or set standalone.environment in the configuration", VisibleVariable, VisibleAnnotation)
	}
	return outcome.Edits, ok, nil
}

// Preview is [Decider.Decide] without effects: it binds and logs nothing.
func (d *Decider) Preview(ctx context.Context, container Container) (outcome Outcome, ok bool, err error) {
	outcome, ok, err = d.decide(ctx, container)
	if err != nil {
		return Outcome{}, false, container.Refuse(err)
	}
	return outcome, ok, nil
}

func (d *Decider) decide(ctx context.Context, c Container) (Outcome, bool, error) {
	if c.Pod == nil {
		return d.decideStandalone(ctx, c)
	}
	return d.decidePod(ctx, c)
}

// buildOutcome returns what gives devices to c, with the extra mounts that it
// requests.
func (d *Decider) buildOutcome(c Container, devices []discovery.Device) (Outcome, error) {
	edits, notes, err := ocispec.BuildEdits(c.OS, devices, c.Env, d.Files, ocispec.NewOptions(d.Policy))
	if err != nil {
		return Outcome{}, explain("", err)
	}
	extra, err := d.extraMounts(c, devices, edits.Mounts)
	if err != nil {
		return Outcome{}, err
	}
	edits.Mounts = append(edits.Mounts, extra...)
	return Outcome{Devices: devices, Edits: edits, Notes: notes}, nil
}

func (d *Decider) log(c Container, outcome Outcome) {
	names := make([]string, len(outcome.Devices))
	for i, device := range outcome.Devices {
		names[i] = device.Name()
	}
	log := d.Log.WithFields(c.fields())
	log.WithField("devices", names).Info("Container gets GPUs")
	ocispec.LogNotes(log, outcome.Notes)
}

// Lookup returns the devices with the given instance IDs, without duplicates. It
// is an error if one of them is missing ([ErrDeviceGone]) or cannot be used
// ([ErrDeviceFailed]).
func Lookup(ctx context.Context, source discovery.Source, byClass bool, instanceIDs []string) ([]discovery.Device, error) {
	present, err := discovery.ByClass(source, byClass).Find(ctx, instanceIDs)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnknownGPUs, err)
	}
	var devices []discovery.Device
	for _, id := range instanceIDs {
		device, ok := discovery.Find(present, id)
		if !ok {
			return nil, fmt.Errorf("GPU %s was allocated, but %w", id, ErrDeviceGone)
		}
		if err := unusable(device); err != nil {
			return nil, fmt.Errorf("GPU %s (%s) was allocated, but %w", device.Name(), id, err)
		}
		if !slices.ContainsFunc(devices, func(other discovery.Device) bool { return other.InstanceID == device.InstanceID }) {
			devices = append(devices, device)
		}
	}
	return devices, nil
}

// unusable returns why d cannot be given to a container, nil if it can.
func unusable(d discovery.Device) error {
	switch {
	case !d.Health.OK():
		return fmt.Errorf("%w: %s", ErrDeviceFailed, d.Health)
	case d.Software:
		return fmt.Errorf("%w: software renderer", ErrDeviceFailed)
	case d.Kind() == discovery.KindNone:
		return fmt.Errorf("%w: it supports neither graphics nor compute", ErrDeviceFailed)
	}
	return nil
}
