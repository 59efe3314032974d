// Package localgrpc connects to the gRPC servers of this machine, containerd and
// the kubelet, and listens for theirs: on Unix sockets, and on Windows on named
// pipes. On Linux it also finds the process behind a socket.
package localgrpc

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// maxMessageBytes is the limit of the kubelet's own clients for CRI and PodResources
// answers. Those of full nodes exceed gRPC's default, a quarter of it.
const maxMessageBytes = 16 << 20

// maxRetryDelay bounds the time between attempts to connect: the servers are
// restarted now and then, and container starts wait for them.
const maxRetryDelay = time.Second

// Dial returns a connection to the server at address: the path of a Unix
// socket, or the name of a pipe such as \\.\pipe\containerd-containerd. Either
// may be a URL as in the kubelet's configuration, unix:///run/x.sock or
// npipe:////./pipe/x. It connects at the first call. Calls to pipes fail on
// systems other than Windows.
func Dial(address string) (*grpc.ClientConn, error) {
	path, isPipe := ParseAddress(address)
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		if isPipe {
			return dialPipe(ctx, path)
		}
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}
	params.Backoff.BaseDelay, params.Backoff.MaxDelay = maxRetryDelay/10, maxRetryDelay
	connection, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(dial),
		grpc.WithConnectParams(params),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return connection, nil
}

// ParseAddress returns the path of the socket or the name of the pipe. The kubelet
// writes its own pipe as npipe://\\.\pipe\kubelet-pod-resources, so slashes and
// backslashes are the same in pipes, and any number of them, with or without the
// machine ".", may come first.
func ParseAddress(address string) (path string, isPipe bool) {
	name, isPipe := strings.CutPrefix(address, "npipe:")
	if !isPipe && !strings.HasPrefix(address, `\\.\`) {
		return strings.TrimPrefix(strings.TrimPrefix(address, "unix:"), "//"), false
	}
	name = strings.TrimLeft(strings.ReplaceAll(name, "/", `\`), `\`)
	return `\\.\` + strings.TrimPrefix(name, `.\`), true
}
