// Package localgrpc connects to the gRPC servers of this machine: containerd and
// the kubelet. On Linux they listen on Unix sockets, on Windows on named pipes.
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

// maxMessageBytes is what the kubelet's own clients take of CRI and PodResources
// answers. gRPC's default is a quarter of it, which full nodes exceed.
const maxMessageBytes = 16 << 20

// longestPause is how long after a failed attempt there is another one at the
// latest: the servers are restarted now and then, and starts wait for them.
const longestPause = time.Second

// Dial returns a connection to the server at address: the path of a Unix
// socket, or the name of a pipe such as \\.\pipe\containerd-containerd. Either
// may be a URL as the kubelet has it, unix:///run/x.sock or npipe:////./pipe/x.
// Nothing is sent yet. Pipes are there on Windows only: elsewhere calls fail.
func Dial(address string) (*grpc.ClientConn, error) {
	path, isPipe := target(address)
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		if isPipe {
			return dialPipe(ctx, path)
		}
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}
	params.Backoff.BaseDelay, params.Backoff.MaxDelay = longestPause/10, longestPause
	connection, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(8<<10), grpc.WithWriteBufferSize(8<<10),
		grpc.WithContextDialer(dial),
		grpc.WithConnectParams(params),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return connection, nil
}

// target returns what address names. The kubelet writes its own pipe as
// npipe://\\.\pipe\kubelet-pod-resources, so slashes count alike in pipes, and
// none, or the machine's ".", may be in front.
func target(address string) (path string, isPipe bool) {
	name, isPipe := strings.CutPrefix(address, "npipe:")
	if !isPipe && !strings.HasPrefix(address, `\\.\`) {
		return strings.TrimPrefix(strings.TrimPrefix(address, "unix:"), "//"), false
	}
	name = strings.TrimLeft(strings.ReplaceAll(name, "/", `\`), `\`)
	return `\\.\` + strings.TrimPrefix(name, `.\`), true
}
