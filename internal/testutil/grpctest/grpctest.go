// Package grpctest serves test doubles of gRPC services. It is separate from package testutil,
// because most tests do not link gRPC.
package grpctest

import (
	"net"
	"testing"

	"google.golang.org/grpc"
)

// Serve serves a service on the Unix socket at path until the test ends.
func Serve(t testing.TB, path string, description *grpc.ServiceDesc, service any) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	server.RegisterService(description, service)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
}
