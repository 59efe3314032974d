package decision

import (
	"cmp"
	"context"
	"errors"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/ocispec"
)

// Reason is why a container was not started, as a label of metrics and a field of logs.
type Reason string

// The reasons.
const (
	ReasonNoRecord      Reason = "no_record"      // no allocation is recorded for the token
	ReasonHeld          Reason = "held"           // the allocation belongs to another container
	ReasonDeviceGone    Reason = "device_gone"    // a GPU does not exist or cannot be used
	ReasonUnreadable    Reason = "unreadable"     // a record cannot be read or trusted
	ReasonWrongVariable Reason = "wrong_variable" // the container's environment hides or moves the token
	ReasonPolicy        Reason = "policy"         // the node policy does not allow an extra mount
	ReasonHyperV        Reason = "hyperv"         // the container is isolated by Hyper-V
	ReasonHandler       Reason = "handler"        // the pod's runtime handler cannot give GPUs
	ReasonRequest       Reason = "request"        // the request of a standalone container cannot be met
	ReasonConfig        Reason = "config"         // the node policy cannot be used
	ReasonSlow          Reason = "slow"           // the node's disk or discovery did not respond in time
	ReasonOther         Reason = "other"
)

const (
	removeVariables = "remove environment variables that begin with " + allocation.EnvPrefix + " from the pod and the image"
	requestByLimits = removeVariables + ", and request the GPU in the container's resource limits"
	restoreGPU      = "restore the GPU, or delete the pod so that its replacement gets another one"
	runDoctor       = "run 'dxctl doctor' on this node"
)

// cause is why a container is not started: an error with its reason and the default remedy, "" if
// the error's string includes the remedy.
type cause struct {
	error
	reason Reason
	remedy string
}

func newCause(reason Reason, message, remedy string) cause {
	return cause{errors.New(message), reason, remedy}
}

// Causes that decisions find.
var (
	errHyperV     = newCause(ReasonHyperV, "it is isolated by Hyper-V, and GPUs are for process-isolated containers only", "use a runtime class with process isolation")
	errOutsidePod = newCause(ReasonRequest, "it presents an allocation but belongs to no pod",
		removeVariables+"; outside Kubernetes a container requests GPUs with the annotation "+VisibleAnnotation+" or, on Windows, the environment variable "+VisibleVariable)
	errOverridden    = newCause(ReasonWrongVariable, "it was allocated, but the container overrides the environment variable", removeVariables)
	errWrongVariable = newCause(ReasonWrongVariable, "the allocation is for another resource", requestByLimits)
	errDeviceGone    = newCause(ReasonDeviceGone, "it is no longer on this node", restoreGPU)
	errDeviceFailed  = newCause(ReasonDeviceGone, "it cannot be used", restoreGPU)
	errUnknownGPUs   = newCause(ReasonOther, "the GPUs of this node are unknown", runDoctor)
	errNoSuchGPU     = newCause(ReasonRequest, "no GPU of this node matches", "")
	errBadRequest    = newCause(ReasonRequest, "invalid request", "")
)

// sentinelCauses returns the causes of the sentinel errors of other packages.
func sentinelCauses() []cause {
	return []cause{
		{allocation.ErrMalformedToken, ReasonWrongVariable, requestByLimits},
		{allocation.ErrHeld, ReasonHeld, requestByLimits},
		{allocation.ErrNotFound, ReasonNoRecord, removeVariables + "; if there are none, the record is lost: delete the pod, and its replacement gets a new one"},
		{allocation.ErrUnreadable, ReasonUnreadable, "delete the pod so that its replacement gets a new allocation, then remove the file"},
		{durable.ErrNotPrivate, ReasonUnreadable, runDoctor},
		{ocispec.ErrNotAssignable, ReasonDeviceGone, "check how discovery describes the device: 'dxctl devices'"},
		{context.DeadlineExceeded, ReasonSlow, runDoctor},
		{errlog.ErrInternal, ReasonOther, ""},
	}
}

// causeOf returns the cause of err.
func causeOf(err error) cause {
	if c, ok := errors.AsType[cause](err); ok {
		return c
	}
	for _, c := range sentinelCauses() {
		if errors.Is(err, c.error) {
			return c
		}
	}
	return cause{err, ReasonOther, runDoctor}
}

// WithDefaultRemedy returns err with the default remedy of its cause, unless it has a remedy.
func WithDefaultRemedy(err error) error {
	remedy := causeOf(err).remedy
	if _, own := errlog.Split(err); own != "" || remedy == "" {
		return err
	}
	return errlog.WithRemedy(err, remedy)
}

// WithReason returns err with a reason and a default remedy, 'dxctl doctor' if it is "".
func WithReason(reason Reason, err error, remedy string) error {
	return cause{err, reason, cmp.Or(remedy, runDoctor)}
}

// Unwrap returns the error without the reason.
func (c cause) Unwrap() error { return c.error }

// ReasonOf returns the reason of err, "" for nil.
func ReasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	return causeOf(err).reason
}

// LogRefusal logs the refusal of c in one line.
func LogRefusal(log logrus.FieldLogger, c Container, err error) {
	log.WithFields(c.fields()).WithField("reason", string(ReasonOf(err))).WithError(err).Error("Container refused")
}
