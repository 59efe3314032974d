//go:build !linux

package localgrpc

import (
	"context"
	"errors"
	"time"
)

// Process is implemented on Linux only.
type Process struct{}

// SocketOwner fails.
func SocketOwner(context.Context, string) (*Process, error) { return nil, errors.ErrUnsupported }

// Started is never called.
func (*Process) Started() (time.Time, error) { return time.Time{}, errors.ErrUnsupported }

// Is is never called.
func (*Process) Is(string) (bool, error) { return false, errors.ErrUnsupported }

// Close does nothing.
func (*Process) Close() error { return nil }
