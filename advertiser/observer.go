package advertiser

import (
	"context"
	"errors"
	"time"
)

// Observer is told what the advertiser does, for metrics. Its methods return at
// once and are called by many at once.
type Observer interface {
	// Allocated tells that one container was given replicas of resource.
	Allocated(resource string)
	// AllocationFailed tells of a request of the kubelet's that was not met;
	// reason is one of a few words.
	AllocationFailed(resource, reason string)
	// StartChecked tells how long the check before a container's start took, and
	// whether the container may start.
	StartChecked(resource string, took time.Duration, passed bool)
}

// nobody is the observer where nobody wants to know.
type nobody struct{}

func (nobody) Allocated(string)                         {}
func (nobody) AllocationFailed(string, string)          {}
func (nobody) StartChecked(string, time.Duration, bool) {}

func orNobody(o Observer) Observer {
	if o == nil {
		return nobody{}
	}
	return o
}

// failure returns, for an [Observer], why a request was not met.
func failure(err error) string {
	switch {
	case errors.Is(err, ErrInvalidRequest):
		return "invalid_request"
	case errors.Is(err, ErrNotInjectable):
		return "not_injectable"
	case diskFull(err):
		return "disk_full"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	}
	return "other"
}
