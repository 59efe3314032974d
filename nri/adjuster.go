package nri

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/durable"
	"directx-nri/ocispec"
)

// Adjuster decides what a pod's container gets.
type Adjuster struct {
	Source discovery.Source
	Store  *allocation.Store
	Files  ocispec.Files
	// OS is the containers' operating system.
	OS  ocispec.OS
	Log logrus.FieldLogger
}

// Adjust returns what makes container the one that its allocations promise, or
// nil for a container that has none. An error means that the container must
// not start; it is one line that says who, what, why and what to do.
func (a *Adjuster) Adjust(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, error) {
	shown := presented(a.OS, container.GetEnv())
	if err := a.checkHidden(pod, container, shown); err != nil {
		return nil, err
	}
	if len(shown) == 0 {
		return nil, nil
	}
	adjustment, err := a.adjust(ctx, pod, container, shown)
	if err != nil {
		return nil, fmt.Errorf("directx-nri: %s is not started: %w", describe(pod, container), err)
	}
	return adjustment, nil
}

func (a *Adjuster) adjust(ctx context.Context, pod *api.PodSandbox, container *api.Container, shown []presentation) (*api.ContainerAdjustment, error) {
	holder := allocation.Holder{
		PodUID: pod.GetUid(), Container: container.GetName(),
		PodNamespace: pod.GetNamespace(), PodName: pod.GetName(),
	}
	if holder.PodUID == "" || holder.Container == "" {
		return nil, errors.New("the container runtime names no pod UID or no container, so that no allocation can be bound to it")
	}
	present, err := a.Source.Devices(ctx)
	if err != nil {
		return nil, fmt.Errorf("the GPUs of this node are not known: %w", err)
	}
	devices, err := a.redeem(shown, holder, present)
	if err != nil {
		return nil, err
	}
	edits, notes, err := ocispec.ForDevices(a.OS, devices, a.Files)
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, advice(err))
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("it took too long: %w", err)
	}
	adjustment := edits.Adjustment(a.OS, container.GetMounts())
	adjustment.AddAnnotation(AdjustedAnnotation, mark(shown))
	a.report(pod, container, devices, notes)
	return adjustment, nil
}

// redeem returns the devices behind all that shown presents, and binds their
// records to holder. All are looked at before the first is bound: a container
// that is refused takes nothing from the one that an allocation was made for.
func (a *Adjuster) redeem(shown []presentation, holder allocation.Holder, present []discovery.Device) ([]discovery.Device, error) {
	var devices []discovery.Device
	var unbound []presentation
	for _, p := range shown {
		record, bound, err := a.check(p, holder)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; %s", p.variable, err, advice(err))
		}
		if !bound {
			unbound = append(unbound, p)
		}
		if devices, err = appendDevices(devices, record, present); err != nil {
			return nil, fmt.Errorf("%s: %w; %s", record.Resource, err, advice(err))
		}
	}
	for _, p := range unbound {
		if err := a.Store.Bind(allocation.Token(p.value), holder); err != nil {
			return nil, fmt.Errorf("%s: %w; %s", p.variable, err, advice(err))
		}
	}
	return devices, nil
}

// check returns the record behind what p presents, and whether it is bound to
// holder already.
func (a *Adjuster) check(p presentation, holder allocation.Holder) (allocation.Record, bool, error) {
	token, err := allocation.ParseToken(p.value)
	if err != nil {
		return allocation.Record{}, false, err
	}
	record, bound, err := a.Store.Check(token, holder)
	if err != nil {
		return allocation.Record{}, false, err
	}
	if want := allocation.EnvKey(record.Resource); want != p.variable {
		return allocation.Record{}, false, fmt.Errorf("%w: it was handed out in %s", errWrongVariable, want)
	}
	return record, bound, nil
}

// checkHidden refuses a container that the kubelet gave an allocation and whose
// own variables hide it: it would start without the GPU that it asked for. An
// annotation that leads to no record is not ours.
func (a *Adjuster) checkHidden(pod *api.PodSandbox, container *api.Container, shown []presentation) error {
	for _, token := range hidden(container.GetAnnotations(), shown) {
		record, err := a.Store.Get(token)
		if errors.Is(err, allocation.ErrNotFound) {
			continue
		}
		if err == nil {
			err = fmt.Errorf("%s was allocated, and the container sets %s itself", record.Resource, allocation.EnvKey(record.Resource))
		}
		return fmt.Errorf("directx-nri: %s is not started: %w; remove variables that begin with %s from the pod and the image", describe(pod, container), err, allocation.EnvPrefix)
	}
	return nil
}

var (
	errWrongVariable = errors.New("the allocation was handed out for another resource")
	errDeviceGone    = errors.New("it is no longer on this node")
	errDeviceFailed  = errors.New("it cannot be used")
)

// appendDevices appends the devices of record, each once: several replicas of
// one GPU are that GPU.
func appendDevices(devices []discovery.Device, record allocation.Record, present []discovery.Device) ([]discovery.Device, error) {
	for _, replica := range record.Replicas {
		d, ok := discovery.Find(present, replica.InstanceID)
		if !ok {
			return nil, fmt.Errorf("GPU %s was allocated and %w", replica.InstanceID, errDeviceGone)
		}
		if !d.Health.OK() {
			return nil, fmt.Errorf("GPU %s (%s) was allocated and %w: %s", d.Name(), d.InstanceID, errDeviceFailed, d.Health)
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
	case errors.Is(err, allocation.ErrMalformedToken), errors.Is(err, errWrongVariable), errors.Is(err, allocation.ErrHeld):
		return "variables that begin with " + allocation.EnvPrefix + " are set by the device plugin alone: remove them from the pod and the image, and ask for the GPU in the container's resource limits"
	case errors.Is(err, allocation.ErrNotFound):
		return "remove variables that begin with " + allocation.EnvPrefix + " from the pod and the image; if there are none, the record is lost: delete the pod, and its replacement is given a new one"
	case errors.Is(err, allocation.ErrUnreadable):
		return "delete the pod, and its replacement is given a new allocation; then remove the file"
	case errors.Is(err, errDeviceGone), errors.Is(err, errDeviceFailed):
		return "bring the GPU back, or delete the pod, and its replacement is given another one"
	case errors.Is(err, ocispec.ErrNotAssignable):
		return "check how discovery describes the device on this node"
	case errors.Is(err, durable.ErrNotPrivate):
		return "no container on this node is given a GPU until then"
	}
	return "it is tried again; see the log of directx-nri on this node"
}

func (a *Adjuster) report(pod *api.PodSandbox, container *api.Container, devices []discovery.Device, notes []ocispec.Note) {
	log := a.Log.WithFields(logrus.Fields{"pod": pod.GetNamespace() + "/" + pod.GetName(), "container": container.GetName()})
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.Name()
	}
	log.WithField("devices", names).Info("container gets its GPUs")
	for _, note := range notes {
		log.Warn(note)
	}
}

func describe(pod *api.PodSandbox, container *api.Container) string {
	return fmt.Sprintf("container %q of pod %s/%s", container.GetName(), pod.GetNamespace(), pod.GetName())
}
