// Package readiness reports to directx-advertiser whether the NRI plugin can adjust containers.
//
// The plugin serves the gRPC health checking protocol on a Unix socket. The advertiser checks it
// before each start of a container with a GPU.
// https://github.com/grpc/grpc/blob/master/doc/health-checking.md
package readiness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// socketName is the socket's name in the runtime directory.
const socketName = "readiness.sock"

const (
	// checkTimeout bounds one Check. A container start waits for it.
	checkTimeout = time.Second
	// listenInterval is the time between attempts to listen, and between checks that the socket is
	// still there.
	listenInterval = 250 * time.Millisecond
)

// Serve answers checks on a socket in runtimeDir until ctx ends, and then removes the socket. ready
// returns why the plugin cannot adjust containers, or nil. Serve creates the directory if
// necessary. If it cannot serve, or another program removes the socket, it retries, because the
// plugin works without the socket. The error matches [localgrpc.ErrInUse] if another process
// answers on the socket.
func Serve(ctx context.Context, runtimeDir string, ready func(context.Context) error, log logrus.FieldLogger) error {
	var last errlog.LastError
	for {
		err := serve(ctx, runtimeDir, ready)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, localgrpc.ErrInUse) {
			return fmt.Errorf("serve readiness: %w: is directx-nri running twice on this node?", err)
		}
		if last.Changed(err) && err != nil {
			log.WithError(err).Error("Containers that request a GPU do not start: " +
				"cannot serve readiness in the runtime directory, retrying; see --runtime-dir")
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenInterval):
		}
	}
}

// serve serves until ctx ends or the socket is removed.
func serve(ctx context.Context, runtimeDir string, ready func(context.Context) error) error {
	if err := access.MakePrivate(runtimeDir); err != nil {
		return err
	}
	listener, err := localgrpc.Listen(ctx, filepath.Join(runtimeDir, socketName))
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.ReadBufferSize(4<<10), grpc.WriteBufferSize(4<<10))
	healthpb.RegisterHealthServer(server, checker{ready: ready})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	for ctx.Err() == nil && listener.Intact() {
		select {
		case err := <-served:
			server.Stop()
			return err
		case <-ctx.Done():
		case <-time.After(listenInterval):
		}
	}
	server.Stop()
	return <-served
}

// checker answers [Check].
type checker struct {
	healthpb.UnimplementedHealthServer
	ready func(context.Context) error
}

func (c checker) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if err := c.ready(ctx); err != nil {
		return nil, status.Error(codes.FailedPrecondition, errlog.OneLine(err.Error())+"\n"+errlog.RemedyOf(err))
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// CheckPlugin returns nil if the NRI plugin that serves the socket in runtimeDir can adjust
// containers. It takes at most a second.
func CheckPlugin(ctx context.Context, runtimeDir string) error {
	path := filepath.Join(runtimeDir, socketName)
	checkCtx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	conn, err := localgrpc.Dial(path)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = healthpb.NewHealthClient(conn).Check(checkCtx, &healthpb.HealthCheckRequest{})
	switch {
	case err == nil: // See [checker.Check].
		return nil
	case ctx.Err() == nil && checkCtx.Err() != nil:
		return fmt.Errorf("the NRI plugin does not answer within %s on %s", checkTimeout, path)
	case status.Code(err) == codes.FailedPrecondition:
		text, fix, _ := strings.Cut(status.Convert(err).Message(), "\n")
		return errlog.WithRemedy(fmt.Errorf("the NRI plugin cannot work: %s", text), fix)
	case status.Code(err) == codes.Unavailable:
		return fmt.Errorf("the NRI plugin is not running: %s; is directx-nri running on this node?", status.Convert(err).Message())
	}
	return fmt.Errorf("query the NRI plugin on %s: %w", path, err)
}
