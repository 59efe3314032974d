package localgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// errRefused is the error of a connection to a socket on which no process listens.
const errRefused = syscall.ECONNREFUSED

func dialPipe(_ context.Context, path string) (net.Conn, error) {
	return nil, fmt.Errorf("connect to named pipe %s: %w", path, errors.ErrUnsupported)
}

// restrictAccess lets only the account of the process connect to the socket at path.
func restrictAccess(path string) error { return os.Chmod(path, 0o600) }
