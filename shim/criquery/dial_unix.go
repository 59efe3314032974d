//go:build unix

package criquery

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// dial connects to a Unix socket, without package net, which costs each start of the shim time.
func dial(address string) (*os.File, error) {
	address = strings.TrimPrefix(address, "unix://")
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(socket, &unix.SockaddrUnix{Name: address}); err != nil {
		_ = unix.Close(socket)
		return nil, err
	}
	if err := unix.SetNonblock(socket, true); err != nil { // for deadlines
		_ = unix.Close(socket)
		return nil, err
	}
	return os.NewFile(uintptr(socket), address), nil
}
