//go:build !linux

package peer

import (
	"context"
	"errors"
	"time"
)

// Process is there on Linux only.
type Process struct{}

// Of fails.
func Of(context.Context, string) (*Process, error) { return nil, errors.ErrUnsupported }

// Started is never called.
func (*Process) Started() (time.Time, error) { return time.Time{}, errors.ErrUnsupported }

// Is is never called.
func (*Process) Is(string) (bool, error) { return false, errors.ErrUnsupported }

// Close does nothing.
func (*Process) Close() error { return nil }
