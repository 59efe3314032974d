package decision

import (
	"context"
	"errors"
	"slices"

	"github.com/sirupsen/logrus"

	"directx-nri/internal/allocation"
	"directx-nri/internal/durable"
	"directx-nri/ocispec"
)

// Reason is why a container was not started, as one of a few words: for a
// metric's label and for looking logs through. What to do about it is in the
// error.
type Reason string

// The reasons.
const (
	// ReasonNoRecord: no allocation is recorded for what the container presents.
	ReasonNoRecord Reason = "no_record"
	// ReasonHeld: the allocation is another container's.
	ReasonHeld Reason = "held"
	// ReasonDeviceGone: a GPU is not there, or cannot be used.
	ReasonDeviceGone Reason = "device_gone"
	// ReasonUnreadable: a record cannot be read, or cannot be believed.
	ReasonUnreadable Reason = "unreadable"
	// ReasonWrongVariable: the container's own variables spoil the token.
	ReasonWrongVariable Reason = "wrong_variable"
	// ReasonPolicy: the container asks for more than this node's policy allows.
	ReasonPolicy Reason = "policy"
	// ReasonHyperV: the container is isolated by Hyper-V.
	ReasonHyperV Reason = "hyperv"
	// ReasonRequest: a standalone container asks for what there is not.
	ReasonRequest Reason = "request"
	// ReasonConfig: our configuration cannot be used.
	ReasonConfig Reason = "config"
	// ReasonUnadjusted: the container was created while the NRI plugin did not
	// answer.
	ReasonUnadjusted Reason = "unadjusted"
	// ReasonSlow: this node's disk or discovery did not answer in time.
	ReasonSlow Reason = "slow"
	// ReasonOther: anything else.
	ReasonOther Reason = "other"
)

func reasons() []Reason {
	return []Reason{
		ReasonNoRecord, ReasonHeld, ReasonDeviceGone, ReasonUnreadable, ReasonWrongVariable, ReasonPolicy,
		ReasonHyperV, ReasonRequest, ReasonConfig, ReasonUnadjusted, ReasonSlow, ReasonOther,
	}
}

// KnownReason returns the reason that word spells, and [ReasonOther] for any
// other word.
func KnownReason(word string) Reason {
	if r := Reason(word); slices.Contains(reasons(), r) {
		return r
	}
	return ReasonOther
}

// Because returns err as an error of the same text that has the given reason.
func Because(reason Reason, err error) error { return reasoned{err, reason} }

type reasoned struct {
	error
	reason Reason
}

func (r reasoned) Unwrap() error { return r.error }

// ReasonOf returns the reason that err has, "" for nil.
func ReasonOf(err error) Reason {
	var stated reasoned
	switch {
	case err == nil:
		return ""
	case errors.As(err, &stated):
		return stated.reason
	case errors.Is(err, errHyperV):
		return ReasonHyperV
	case errors.Is(err, allocation.ErrMalformedToken), errors.Is(err, ErrWrongVariable):
		return ReasonWrongVariable
	case errors.Is(err, allocation.ErrNotFound):
		return ReasonNoRecord
	case errors.Is(err, allocation.ErrHeld):
		return ReasonHeld
	case errors.Is(err, allocation.ErrUnreadable), errors.Is(err, durable.ErrNotPrivate):
		return ReasonUnreadable
	case errors.Is(err, ErrDeviceGone), errors.Is(err, ErrDeviceFailed), errors.Is(err, errUnknownGPUs), errors.Is(err, ocispec.ErrNotAssignable):
		return ReasonDeviceGone
	case errors.Is(err, errOutsidePod), errors.Is(err, errNoSuchGPU), errors.Is(err, errBadRequest):
		return ReasonRequest
	case errors.Is(err, context.DeadlineExceeded):
		return ReasonSlow
	}
	return ReasonOther
}

// LogRefusal writes the one line that a refusal of c is told in.
func LogRefusal(log logrus.FieldLogger, c Container, err error) {
	log.WithFields(c.fields()).WithField("reason", string(ReasonOf(err))).WithError(err).Error("container refused")
}
