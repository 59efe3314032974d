package decision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

// Reason is why a container was not started, as a label of metrics and a field of logs.
type Reason string

// The reasons.
const (
	ReasonNoRecord   Reason = "no_record"   // there is no record with the ID in the annotation, or no annotation
	ReasonHeld       Reason = "held"        // the allocation belongs to another container
	ReasonDeviceGone Reason = "device_gone" // a GPU does not exist or cannot be used
	ReasonUnreadable Reason = "unreadable"  // a record cannot be read or trusted
	ReasonForged     Reason = "forged"      // the pod has an annotation that only the kubelet may set
	ReasonPolicy     Reason = "policy"      // the node policy does not allow an extra mount
	ReasonHyperV     Reason = "hyperv"      // the container is isolated by Hyper-V
	ReasonHandler    Reason = "handler"     // the pod's runtime handler cannot give GPUs
	ReasonRequest    Reason = "request"     // the request of a standalone container cannot be met
	ReasonConfig     Reason = "config"      // the node policy cannot be used
	ReasonSlow       Reason = "slow"        // the node's disk, discovery or containerd did not respond in time
	ReasonOther      Reason = "other"
)

// The errors of decisions.
var (
	errHyperV       = WithReason(ReasonHyperV, errors.New("it is isolated by Hyper-V, and GPUs are for process-isolated containers only"))
	errForged       = WithReason(ReasonForged, errors.New("the pod has this annotation, which only the kubelet may set, on a container"))
	errNoAllocation = WithReason(ReasonNoRecord, errors.New("a GPU was allocated to it, but the container runtime does not report which"))
	errNoSuchGPU    = WithReason(ReasonRequest, errors.New("no GPU of this node matches"))
)

// reasonError is an error with the reason why a container is not started.
type reasonError struct {
	error
	reason Reason
}

func (e reasonError) Unwrap() error { return e.error }

// WithReason returns err with a reason.
func WithReason(reason Reason, err error) error { return reasonError{err, reason} }

// refusals are the remedies of reasons, and the errors of other packages that have the reasons.
func refusals() []refusal {
	const replacePod = "delete the pod, and its replacement gets a new allocation"
	return []refusal{
		{ReasonNoRecord, replacePod, []error{allocation.ErrMalformedID, allocation.ErrNotFound}},
		{ReasonHeld, replacePod, []error{allocation.ErrHeld}},
		{ReasonUnreadable, replacePod + ", then remove the file", []error{allocation.ErrUnreadable, access.ErrUntrusted}},
		{ReasonForged, "remove it from the pod, and request the GPU in the container's resource limits", nil},
		{ReasonPolicy, "correct the request, or ask the administrator to change extraMounts in the configuration", nil},
		{ReasonHyperV, "use a runtime class with process isolation", nil},
		{ReasonHandler, "use a runtime class whose handler runs runc, or no runtime class", nil},
		{ReasonRequest, "'dxctl devices' lists the GPUs", nil},
		{ReasonDeviceGone, errlog.RunDoctor, []error{discovery.ErrGone, discovery.ErrUnusable, gpuedits.ErrNotAssignable}},
		{ReasonSlow, errlog.RunDoctor, []error{context.DeadlineExceeded, os.ErrDeadlineExceeded, discovery.ErrNoAnswer}},
		{ReasonConfig, errlog.RunDoctor, nil},
	}
}

type refusal struct {
	reason Reason
	remedy string
	errs   []error
}

// refusalOf returns that of the reason of [WithReason], or of the first error of another package that err matches.
func refusalOf(err error) refusal {
	withReason, ok := errors.AsType[reasonError](err)
	for _, r := range refusals() {
		if ok && r.reason == withReason.reason || !ok && slices.ContainsFunc(r.errs, func(e error) bool { return errors.Is(err, e) }) {
			return r
		}
	}
	return refusal{ReasonOther, errlog.RunDoctor, nil}
}

// Refuse returns the reason why c is not started because of err, and the error with which its creation fails:
// directx-nri, the container's name, and err with a remedy (its own, or that of the reason).
func (c Container) Refuse(err error) (Reason, error) {
	r := refusalOf(err)
	return r.reason, fmt.Errorf("directx-nri: %s is not started: %w", c, errlog.WithRemedy(err, r.remedy))
}

// LogRefusal logs the results of [Container.Refuse] in one line.
func (c Container) LogRefusal(log logrus.FieldLogger, reason Reason, err error) {
	log.WithFields(c.fields()).WithField("reason", string(reason)).WithError(err).Error("Container refused")
}
