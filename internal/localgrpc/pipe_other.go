//go:build !windows

package localgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
)

func dialPipe(_ context.Context, path string) (net.Conn, error) {
	return nil, fmt.Errorf("%s: named pipes are there on Windows only: %w", path, errors.ErrUnsupported)
}
