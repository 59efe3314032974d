//go:build !windows

package localgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
)

func dialPipe(_ context.Context, path string) (net.Conn, error) {
	return nil, fmt.Errorf("connect to named pipe %s: %w", path, errors.ErrUnsupported)
}
