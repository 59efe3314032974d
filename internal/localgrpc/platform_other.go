//go:build !windows

package localgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

func dialPipe(_ context.Context, path string) (net.Conn, error) {
	return nil, fmt.Errorf("connect to named pipe %s: %w", path, errors.ErrUnsupported)
}

// restrict lets only the account of the process connect to the socket at path.
func restrict(path string) error { return os.Chmod(path, 0o600) }
