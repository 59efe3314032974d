// Package decision decides what a container gets when it is created: the NRI
// plugin and the runtime shim ask it the same question and carry the answer
// in their own ways.
//
// In a pod, a recorded allocation is the only key. Outside of one, whoever can
// create a container is an administrator and asks by name.
package decision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/durable"
	"directx-nri/nri/extramounts"
	"directx-nri/ocispec"
)

// Container is what of a container a decision is made from.
type Container struct {
	// OS is the container's operating system.
	OS ocispec.OS
	// ID is the runtime's ID of the container.
	ID string
	// Pod is the pod that the container belongs to, nil for a standalone
	// container.
	Pod *Pod
	// Name is the container's name in its pod.
	Name string
	// Env are the container's variables as NAME=value.
	Env         []string
	Annotations map[string]string
	// PodAnnotations are those of its pod, where they are not among the
	// container's own.
	PodAnnotations map[string]string
	// Devices are the Windows devices that the container's spec has already.
	Devices []specs.WindowsDevice
	// HyperV tells a container in a virtual machine of its own.
	HyperV bool
}

// Pod is the pod of a container. The runtime says so, and no pod can.
type Pod struct{ UID, Namespace, Name string }

func (c Container) String() string {
	if c.Pod == nil {
		return fmt.Sprintf("container %q", c.ID)
	}
	return fmt.Sprintf("container %q of pod %s/%s", c.Name, c.Pod.Namespace, c.Pod.Name)
}

// Refuse returns err as the error that keeps the container from starting: one
// line that begins with our name and the container's.
func (c Container) Refuse(err error) error {
	return fmt.Errorf("directx-nri: %s is not started: %w", c, err)
}

// Decider decides what containers get.
type Decider struct {
	Source discovery.Source
	Store  *allocation.Store
	Files  Files
	Log    logrus.FieldLogger
	// Policy must not change while a decision is made.
	Policy Policy
}

// Files is what must be asked about the node's files.
type Files interface {
	ocispec.Files
	extramounts.Files
}

// Outcome is what a container that asks is given.
type Outcome struct {
	// Devices are its GPUs.
	Devices []discovery.Device
	// Edits are what gives them to it.
	Edits ocispec.Edits
	// Notes tell of files that it does without.
	Notes []ocispec.Note
	// claim is what is yet to be bound.
	claim claim
}

// claim is a container and the variables by which it presents records that are
// bound to nobody.
type claim struct {
	holder  allocation.Holder
	unbound []presentation
}

// Decide returns what container gets; ok is false when it asks for nothing, and
// then nothing of it is to be touched. An error means that the container must
// not start; it is one line that says who, what, why and what to do.
//
// What a container of a pod gets is its own from then on.
func (d *Decider) Decide(ctx context.Context, container Container) (edits ocispec.Edits, ok bool, err error) {
	outcome, ok, err := d.decide(ctx, container)
	if err == nil {
		err = d.bind(outcome.claim)
	}
	if err == nil && ok && ctx.Err() != nil {
		err = fmt.Errorf("it took too long: %w", ctx.Err())
	}
	if err != nil {
		return ocispec.Edits{}, false, container.Refuse(err)
	}
	if ok {
		d.tell(container, outcome)
	}
	return outcome.Edits, ok, nil
}

// Preview is [Decider.Decide] for somebody who wants to know: it binds nothing
// and writes no log.
func (d *Decider) Preview(ctx context.Context, container Container) (outcome Outcome, ok bool, err error) {
	outcome, ok, err = d.decide(ctx, container)
	if err != nil {
		return Outcome{}, false, container.Refuse(err)
	}
	return outcome, ok, nil
}

// decide writes nothing.
func (d *Decider) decide(ctx context.Context, container Container) (Outcome, bool, error) {
	if container.Pod == nil {
		return d.asked(ctx, container)
	}
	return d.promised(ctx, container)
}

// promised decides for a container of a pod.
func (d *Decider) promised(ctx context.Context, c Container) (Outcome, bool, error) {
	shown := presented(c.OS, c.Env)
	if err := d.checkHidden(c, shown); err != nil {
		return Outcome{}, false, err
	}
	if len(shown) == 0 {
		return Outcome{}, false, nil
	}
	if c.HyperV {
		return Outcome{}, false, fmt.Errorf("%w; %s", errHyperV, advice(errHyperV))
	}
	holder := allocation.Holder{PodUID: c.Pod.UID, Container: c.Name, PodNamespace: c.Pod.Namespace, PodName: c.Pod.Name}
	if holder.PodUID == "" || holder.Container == "" {
		return Outcome{}, false, errors.New("the container runtime names no pod UID or no container, so that no allocation can be bound to it")
	}
	devices, claimed, err := d.redeem(ctx, shown, holder)
	if err != nil {
		return Outcome{}, false, err
	}
	outcome, err := d.give(c, devices)
	if err != nil {
		return Outcome{}, false, err
	}
	outcome.Edits.Annotations = map[string]string{AdjustedAnnotation: mark(shown)}
	outcome.claim = claimed
	return outcome, true, nil
}

// give returns what gives devices to c, and what else it asks for.
func (d *Decider) give(c Container, devices []discovery.Device) (Outcome, error) {
	options := ocispec.Options{ByClass: d.Policy.ByClass, RuntimeFiles: d.Policy.RuntimeFiles}
	edits, notes, err := options.ForDevices(c.OS, devices, d.Files)
	if err != nil {
		return Outcome{}, fmt.Errorf("%w; %s", err, advice(err))
	}
	extra, err := d.extraMounts(c, devices, edits.Mounts)
	if err != nil {
		return Outcome{}, err
	}
	edits.Mounts = append(edits.Mounts, extra...)
	if d.Policy.VisibilityHints {
		hints, err := ocispec.Hints(c.OS, devices, c.Env)
		if err != nil {
			return Outcome{}, err
		}
		edits.Env = append(edits.Env, hints...)
	}
	return Outcome{Devices: devices, Edits: edits, Notes: notes}, nil
}

// tell tells the log what c was given.
func (d *Decider) tell(c Container, given Outcome) {
	names := make([]string, len(given.Devices))
	for i, device := range given.Devices {
		names[i] = device.Name()
	}
	log := d.Log.WithFields(c.fields())
	log.WithField("devices", names).Info("container gets its GPUs")
	for _, note := range given.Notes {
		if note.Minor {
			log.Debug(note)
		} else {
			log.Warn(note)
		}
	}
}

func (c Container) fields() logrus.Fields {
	if c.Pod == nil {
		return logrus.Fields{"container": c.ID}
	}
	return logrus.Fields{"pod": c.Pod.Namespace + "/" + c.Pod.Name, "container": c.Name}
}

// redeem returns the devices behind all that shown presents, and what of it is
// to be bound to holder. All is looked at before the first is bound: a container
// that is refused takes nothing from the one that an allocation was made for.
func (d *Decider) redeem(ctx context.Context, shown []presentation, holder allocation.Holder) ([]discovery.Device, claim, error) {
	var devices []discovery.Device
	var records []allocation.Record
	claimed := claim{holder: holder}
	for _, p := range shown {
		record, bound, err := d.check(p, holder)
		if err != nil {
			return nil, claim{}, fmt.Errorf("%s: %w; %s", p.variable, err, advice(err))
		}
		if !bound {
			claimed.unbound = append(claimed.unbound, p)
		}
		records = append(records, record)
	}
	present, err := d.present(ctx, records)
	if err != nil {
		return nil, claim{}, fmt.Errorf("%w: %w", errUnknownGPUs, err)
	}
	for _, record := range records {
		if devices, err = appendDevices(devices, record, present); err != nil {
			return nil, claim{}, fmt.Errorf("%s: %w; %s", record.Resource, err, advice(err))
		}
	}
	return devices, claimed, nil
}

// bind binds the records that c presents to its container.
func (d *Decider) bind(c claim) error {
	for _, p := range c.unbound {
		if err := d.Store.Bind(allocation.Token(p.value), c.holder); err != nil {
			return fmt.Errorf("%s: %w; %s", p.variable, err, advice(err))
		}
	}
	return nil
}

// present returns the GPUs of records that the node has now.
func (d *Decider) present(ctx context.Context, records []allocation.Record) ([]discovery.Device, error) {
	var ids []string
	for _, record := range records {
		for _, replica := range record.Replicas {
			if !slices.ContainsFunc(ids, func(id string) bool { return strings.EqualFold(id, replica.InstanceID) }) {
				ids = append(ids, replica.InstanceID)
			}
		}
	}
	return d.source().Find(ctx, ids)
}

// source is the node's GPUs as the policy has them.
func (d *Decider) source() discovery.Source {
	return discovery.ByClass(d.Source, func() bool { return d.Policy.ByClass })
}

// check returns the record behind what p presents, and whether it is bound to
// holder already.
func (d *Decider) check(p presentation, holder allocation.Holder) (allocation.Record, bool, error) {
	token, err := allocation.ParseToken(p.value)
	if err != nil {
		return allocation.Record{}, false, err
	}
	record, bound, err := d.Store.Check(token, holder)
	if err != nil {
		return allocation.Record{}, false, err
	}
	if want := allocation.EnvKey(record.Resource); want != p.variable {
		return allocation.Record{}, false, fmt.Errorf("%w: it was handed out in %s", ErrWrongVariable, want)
	}
	return record, bound, nil
}

// checkHidden refuses a container that the kubelet gave an allocation and whose
// own variables hide it: it would start without the GPU that it asked for. An
// annotation that leads to no record is not ours.
func (d *Decider) checkHidden(c Container, shown []presentation) error {
	for _, token := range hidden(c.Annotations, shown) {
		record, err := d.Store.Get(token)
		if errors.Is(err, allocation.ErrNotFound) {
			continue
		}
		if err == nil {
			err = Because(ReasonWrongVariable, fmt.Errorf("%s was allocated, and the container sets %s itself", record.Resource, allocation.EnvKey(record.Resource)))
		}
		return fmt.Errorf("%w; remove variables that begin with %s from the pod and the image", err, allocation.EnvPrefix)
	}
	return nil
}

// Errors of [Decider.Decide], beside those of the records and of discovery.
var (
	// ErrWrongVariable: a token was presented in the variable of another
	// resource.
	ErrWrongVariable = errors.New("the allocation was handed out for another resource")
	// ErrDeviceGone: a GPU that was allocated is not there.
	ErrDeviceGone = errors.New("it is no longer on this node")
	// ErrDeviceFailed: a GPU is there and cannot be used.
	ErrDeviceFailed = errors.New("it cannot be used")
	errHyperV       = errors.New("it is isolated by Hyper-V, and a GPU is shared with process-isolated containers only")
)

// appendDevices appends the devices of record, each once: several replicas of
// one GPU are that GPU.
func appendDevices(devices []discovery.Device, record allocation.Record, present []discovery.Device) ([]discovery.Device, error) {
	for _, replica := range record.Replicas {
		d, ok := discovery.Find(present, replica.InstanceID)
		if !ok {
			return nil, fmt.Errorf("GPU %s was allocated and %w", replica.InstanceID, ErrDeviceGone)
		}
		if err := unusable(d); err != nil {
			return nil, fmt.Errorf("GPU %s (%s) was allocated and %w", d.Name(), d.InstanceID, err)
		}
		if d.UUID == "" {
			// Whoever looks up single devices does not ask their drivers.
			d.UUID = replica.UUID
		}
		if !slices.ContainsFunc(devices, func(other discovery.Device) bool { return other.InstanceID == d.InstanceID }) {
			devices = append(devices, d)
		}
	}
	return devices, nil
}

// advice says what to do about err.
func advice(err error) string {
	switch {
	case errors.Is(err, allocation.ErrMalformedToken), errors.Is(err, ErrWrongVariable), errors.Is(err, allocation.ErrHeld):
		return "variables that begin with " + allocation.EnvPrefix + " are set by the device plugin alone: remove them from the pod and the image, and ask for the GPU in the container's resource limits"
	case errors.Is(err, allocation.ErrNotFound):
		return "remove variables that begin with " + allocation.EnvPrefix + " from the pod and the image; if there are none, the record is lost: delete the pod, and its replacement is given a new one"
	case errors.Is(err, allocation.ErrUnreadable):
		return "delete the pod, and its replacement is given a new allocation; then remove the file"
	case errors.Is(err, ErrDeviceGone), errors.Is(err, ErrDeviceFailed):
		return "bring the GPU back, or delete the pod, and its replacement is given another one"
	case errors.Is(err, ocispec.ErrNotAssignable):
		return "check how discovery describes the device on this node"
	case errors.Is(err, errHyperV):
		return "run it with a runtime class of process-isolated containers"
	case errors.Is(err, durable.ErrNotPrivate):
		return "no container on this node is given a GPU until then"
	}
	return "it is tried again; see the log of directx-nri on this node"
}

// Asks tells whether c may ask for a GPU at all. It looks at nothing but c: a
// container for which it is false is not to be touched, whatever state this
// node is in.
func Asks(c Container) bool {
	shown := presented(c.OS, c.Env)
	if len(shown) > 0 {
		return true
	}
	if c.Pod != nil {
		return len(hidden(c.Annotations, shown)) > 0
	}
	_, request := visible(c)
	if strings.EqualFold(request, visibleNone) {
		return false
	}
	return request != "" || assigned(c.Devices).any()
}
