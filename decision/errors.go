package decision

import (
	"context"
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/ocispec"
)

// Reason is why a container was not started, as a label of metrics and a field of
// logs.
type Reason string

// The reasons.
const (
	ReasonNoRecord      Reason = "no_record"      // no allocation is recorded for the token
	ReasonHeld          Reason = "held"           // the allocation belongs to another container
	ReasonDeviceGone    Reason = "device_gone"    // a GPU does not exist or cannot be used
	ReasonUnreadable    Reason = "unreadable"     // a record cannot be read or trusted
	ReasonWrongVariable Reason = "wrong_variable" // the container's own variables break the token
	ReasonPolicy        Reason = "policy"         // the node policy does not allow an extra mount
	ReasonHyperV        Reason = "hyperv"         // the container is isolated by Hyper-V
	ReasonHandler       Reason = "handler"        // the pod's runtime handler cannot give GPUs
	ReasonRequest       Reason = "request"        // the request of a standalone container cannot be met
	ReasonConfig        Reason = "config"         // the node policy cannot be used
	ReasonSlow          Reason = "slow"           // the node's disk or discovery did not respond in time
	ReasonOther         Reason = "other"
)

// ErrInternal is the error of a recovered panic.
var ErrInternal = errors.New("internal error in directx-nri, please report it")

// Errors of decisions, in addition to those of records.
var (
	errWrongVariable = errors.New("the allocation is for another resource")
	errOverridden    = errors.New("it was allocated, but the container overrides the environment variable")
	errHyperV        = errors.New("it is isolated by Hyper-V, and GPUs are for process-isolated containers only")
	errOutsidePod    = errors.New("it presents an allocation but belongs to no pod")
	errDeviceGone    = errors.New("it is no longer on this node")
	errDeviceFailed  = errors.New("it cannot be used")
	errNoSuchGPU     = errors.New("no GPU of this node matches")
	errBadRequest    = errors.New("invalid request")
	errUnknownGPUs   = errors.New("the GPUs of this node are unknown")
)

const (
	removeVariables = "remove environment variables that begin with " + allocation.EnvPrefix + " from the pod and the image"
	runDoctor       = "run 'dxctl doctor' on this node"
)

// knownError is a row of the error table.
type knownError struct {
	err    error
	reason Reason
	remedy string
}

// errorTable returns the reason and remedy of each known error; the first match
// applies.
func errorTable() []knownError {
	const restoreGPU = "restore the GPU, or delete the pod so that its replacement gets another one"
	const requestByLimits = removeVariables + ", and request the GPU in the container's resource limits"
	return []knownError{
		{errHyperV, ReasonHyperV, "use a runtime class with process isolation"},
		{errOutsidePod, ReasonRequest, removeVariables + "; outside Kubernetes a container requests GPUs with the annotation " + VisibleAnnotation + " or, on Windows, the environment variable " + VisibleVariable},
		{errOverridden, ReasonWrongVariable, removeVariables},
		{allocation.ErrMalformedToken, ReasonWrongVariable, requestByLimits},
		{errWrongVariable, ReasonWrongVariable, requestByLimits},
		{allocation.ErrHeld, ReasonHeld, requestByLimits},
		{allocation.ErrNotFound, ReasonNoRecord, removeVariables + "; if there are none, the record is lost: delete the pod, and its replacement gets a new one"},
		{allocation.ErrUnreadable, ReasonUnreadable, "delete the pod so that its replacement gets a new allocation, then remove the file"},
		{durable.ErrNotPrivate, ReasonUnreadable, "no container on this node gets a GPU until this is fixed"},
		{errDeviceGone, ReasonDeviceGone, restoreGPU},
		{errDeviceFailed, ReasonDeviceGone, restoreGPU},
		{ocispec.ErrNotAssignable, ReasonDeviceGone, "check how discovery describes the device: 'dxctl devices'"},
		{errUnknownGPUs, ReasonDeviceGone, runDoctor},
		{errNoSuchGPU, ReasonRequest, ""},
		{errBadRequest, ReasonRequest, ""},
		{context.DeadlineExceeded, ReasonSlow, runDoctor},
	}
}

func lookupError(err error) knownError {
	for _, known := range errorTable() {
		if errors.Is(err, known.err) {
			return known
		}
	}
	return knownError{err, ReasonOther, runDoctor}
}

// withRemedy returns err with its remedy, and with subject before it if there is one.
func withRemedy(subject string, err error) error {
	if subject != "" {
		err = fmt.Errorf("%s: %w", subject, err)
	}
	if remedy := lookupError(err).remedy; remedy != "" {
		err = fmt.Errorf("%w; %s", err, remedy)
	}
	return err
}

// WithReason returns err with a reason that takes precedence over the error table.
func WithReason(reason Reason, err error) error { return reasonError{err, reason} }

type reasonError struct {
	error
	reason Reason
}

func (r reasonError) Unwrap() error { return r.error }

// ReasonOf returns the reason of err, "" for nil.
func ReasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	if stated := (reasonError{}); errors.As(err, &stated) {
		return stated.reason
	}
	return lookupError(err).reason
}

// LogRefusal logs the refusal of c in one line.
func LogRefusal(log logrus.FieldLogger, c Container, err error) {
	log.WithFields(c.fields()).WithField("reason", string(ReasonOf(err))).WithError(err).Error("Container refused")
}
