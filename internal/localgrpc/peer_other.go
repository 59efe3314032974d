//go:build !linux

package localgrpc

import "net"

// PeerPID returns 0: unknown.
func PeerPID(net.Conn) (int, error) { return 0, nil }
