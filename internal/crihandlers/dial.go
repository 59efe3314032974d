package crihandlers

import (
	"context"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Dial returns a connection to containerd's socket: a Unix socket, or on Windows
// a named pipe such as \\.\pipe\containerd-containerd. A "unix://" or
// "npipe://" before it, as the kubelet has it, is skipped. Nothing is sent yet.
func Dial(address string) (*grpc.ClientConn, error) {
	path, isPipe := address, false
	if rest, ok := strings.CutPrefix(address, "npipe:"); ok {
		path, isPipe = `\\.\`+strings.ReplaceAll(strings.TrimPrefix(strings.TrimLeft(rest, `/\`), "./"), "/", `\`), true
	} else if strings.HasPrefix(address, `\\.\`) {
		isPipe = true
	} else {
		path = strings.TrimPrefix(strings.TrimPrefix(address, "unix:"), "//")
	}
	dialer := func(ctx context.Context, _ string) (net.Conn, error) {
		if isPipe {
			return dialPipe(ctx, path)
		}
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	connection, err := grpc.NewClient("passthrough:///containerd", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dialer))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", address, err)
	}
	return connection, nil
}
