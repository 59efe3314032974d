package localgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

func dialPipe(_ context.Context, path string) (net.Conn, error) {
	return nil, fmt.Errorf("connect to named pipe %s: %w", path, errors.ErrUnsupported)
}

// restrictAccess lets only the account of the process connect to the socket at path.
func restrictAccess(path string) error { return os.Chmod(path, 0o600) }

// PeerPID returns the ID of the process that listens on the Unix socket of a connection, 0 if the
// process is in another PID namespace.
func PeerPID(connection net.Conn) (int, error) {
	raw, err := connection.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var optionErr error
	err = raw.Control(func(fd uintptr) { peer, optionErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, optionErr); err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}
