//go:build !linux

package localgrpc

import (
	"context"
	"errors"
	"net"
)

// Process is implemented on Linux only.
type Process struct{ PID int }

// SocketOwner fails.
func SocketOwner(context.Context, string) (*Process, error) { return nil, errors.ErrUnsupported }

// PeerPID returns 0: unknown.
func PeerPID(net.Conn) (int, error) { return 0, nil }

// Close does nothing.
func (*Process) Close() error { return nil }
