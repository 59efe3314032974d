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

const replacePod = "delete the pod, and its replacement gets a new allocation"

// The errors of decisions.
var (
	errHyperV = WithReason(ReasonHyperV, errlog.WithRemedy(
		errors.New("it is isolated by Hyper-V, and GPUs are for process-isolated containers only"),
		"use a runtime class with process isolation"))
	errForged = WithReason(ReasonForged, errlog.WithRemedy(errors.New("the pod has this annotation, which only the kubelet may set, on a container"),
		"remove it from the pod, and request the GPU in the container's resource limits"))
	errNoAllocation = WithReason(ReasonNoRecord, errlog.WithRemedy(errors.New("a GPU was allocated to it, but the container runtime does not report which"), replacePod))
	errNoSuchGPU    = WithReason(ReasonRequest, errors.New("no GPU of this node matches"))
	errBadRequest   = WithReason(ReasonRequest, errors.New("invalid request"))
)

// reasonError is an error with the reason why a container is not started.
type reasonError struct {
	error
	reason Reason
}

func (e reasonError) Unwrap() error { return e.error }

// WithReason returns err with a reason. Its default remedy is [errlog.RunDoctor].
func WithReason(reason Reason, err error) error { return reasonError{err, reason} }

// explain returns the reason of err and the default remedy: those of [WithReason], or of the first
// error of another package that err matches.
func explain(err error) (reason Reason, fix string) {
	if e, ok := errors.AsType[reasonError](err); ok {
		return e.reason, errlog.RunDoctor
	}
	for _, c := range []struct {
		err    error
		reason Reason
		fix    string
	}{
		{allocation.ErrMalformedID, ReasonNoRecord, replacePod},
		{allocation.ErrHeld, ReasonHeld, replacePod},
		{allocation.ErrNotFound, ReasonNoRecord, "the record is lost: " + replacePod},
		{allocation.ErrUnreadable, ReasonUnreadable, replacePod + ", then remove the file"},
		{access.ErrNotPrivate, ReasonUnreadable, errlog.RunDoctor},
		{discovery.ErrGone, ReasonDeviceGone, errlog.RunDoctor},
		{discovery.ErrUnusable, ReasonDeviceGone, errlog.RunDoctor},
		{gpuedits.ErrNotAssignable, ReasonDeviceGone, gpuedits.CheckDiscovery},
		{context.DeadlineExceeded, ReasonSlow, errlog.RunDoctor},
		{discovery.ErrNoAnswer, ReasonSlow, errlog.RunDoctor},
	} {
		if errors.Is(err, c.err) {
			return c.reason, c.fix
		}
	}
	return ReasonOther, errlog.RunDoctor
}

// ReasonOf returns the reason of err.
func ReasonOf(err error) Reason {
	reason, _ := explain(err)
	return reason
}

// withDefaultRemedy returns err with the default remedy of its reason, unless it has a remedy.
func withDefaultRemedy(err error) error {
	_, fix := explain(err)
	return errlog.WithRemedy(err, fix)
}

// LogRefusal logs the refusal of c in one line.
func LogRefusal(log logrus.FieldLogger, c Container, err error) {
	log.WithFields(c.fields()).WithField("reason", string(ReasonOf(err))).WithError(err).Error("Container refused")
}
