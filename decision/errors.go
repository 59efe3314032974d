package decision

import (
	"context"
	"errors"

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
	ReasonSlow       Reason = "slow"        // the node's disk or discovery did not respond in time
	ReasonOther      Reason = "other"
)

// remedy returns the remedy of a refusal whose error has none.
func (r Reason) remedy() string {
	const replacePod = "delete the pod, and its replacement gets a new allocation"
	switch r {
	case ReasonNoRecord, ReasonHeld:
		return replacePod
	case ReasonUnreadable:
		return replacePod + ", then remove the file"
	case ReasonForged:
		return "remove it from the pod, and request the GPU in the container's resource limits"
	case ReasonPolicy:
		return "correct the request, or ask the administrator to change extraMounts in the configuration"
	case ReasonHyperV:
		return "use a runtime class with process isolation"
	case ReasonHandler:
		return "use a runtime class whose handler runs runc, or no runtime class"
	case ReasonRequest:
		return "'dxctl devices' lists the GPUs"
	}
	return errlog.RunDoctor
}

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

// ReasonOf returns the reason of err: that of [WithReason], or of the first error of another package that err
// matches.
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[reasonError](err); ok {
		return e.reason
	}
	for _, c := range []struct {
		err    error
		reason Reason
	}{
		{allocation.ErrMalformedID, ReasonNoRecord},
		{allocation.ErrNotFound, ReasonNoRecord},
		{allocation.ErrHeld, ReasonHeld},
		{allocation.ErrUnreadable, ReasonUnreadable},
		{access.ErrNotPrivate, ReasonUnreadable},
		{discovery.ErrGone, ReasonDeviceGone},
		{discovery.ErrUnusable, ReasonDeviceGone},
		{gpuedits.ErrNotAssignable, ReasonDeviceGone},
		{context.DeadlineExceeded, ReasonSlow},
		{discovery.ErrNoAnswer, ReasonSlow},
	} {
		if errors.Is(err, c.err) {
			return c.reason
		}
	}
	return ReasonOther
}

// LogRefusal logs the refusal of c in one line.
func LogRefusal(log logrus.FieldLogger, c Container, err error) {
	log.WithFields(c.fields()).WithField("reason", string(ReasonOf(err))).WithError(err).Error("Container refused")
}
