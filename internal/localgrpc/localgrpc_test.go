package localgrpc

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"/run/containerd/containerd.sock":        "/run/containerd/containerd.sock",
		"unix:///run/containerd/containerd.sock": "/run/containerd/containerd.sock",
		"unix:/run/containerd/containerd.sock":   "/run/containerd/containerd.sock",
		`C:\run\x.sock`:                          `C:\run\x.sock`,
		`\\.\pipe\containerd-containerd`:         `pipe \\.\pipe\containerd-containerd`,
		"npipe:////./pipe/containerd-containerd": `pipe \\.\pipe\containerd-containerd`,
		"npipe://./pipe/containerd-containerd":   `pipe \\.\pipe\containerd-containerd`,
		"npipe:///pipe/containerd-containerd":    `pipe \\.\pipe\containerd-containerd`,
		// As LocalEndpoint of the kubelet's pkg/kubelet/util/util_windows.go makes it.
		`npipe://\\.\pipe\kubelet-pod-resources`: `pipe \\.\pipe\kubelet-pod-resources`,
	} {
		got, isPipe := ParseAddress(address)
		if isPipe {
			got = "pipe " + got
		}
		if got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

type largeAnswer struct {
	cri.UnimplementedRuntimeServiceServer
}

func (largeAnswer) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeVersion: strings.Repeat("x", 5<<20)}, nil
}

func TestDialAcceptsLargeAnswers(t *testing.T) {
	t.Parallel()
	needsUnixSockets(t)
	socket := filepath.Join(testutil.ShortDir(t), "s")
	grpctest.Serve(t, socket, &cri.RuntimeService_ServiceDesc, largeAnswer{})
	for _, address := range []string{socket, "unix://" + socket, "unix:" + socket} {
		if err := callVersion(t, address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestDialWithoutServer(t *testing.T) {
	t.Parallel()
	needsUnixSockets(t)
	nowhere := filepath.Join(testutil.ShortDir(t), "s")
	if err := callVersion(t, nowhere); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), nowhere) {
		t.Errorf("no server: %v", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	err := callVersion(t, `\\.\pipe\x`)
	if err == nil || !strings.Contains(err.Error(), errors.ErrUnsupported.Error()) {
		t.Errorf("a pipe: %v", err)
	}
}

func callVersion(t *testing.T, address string) error {
	t.Helper()
	connection, err := Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	_, err = cri.NewRuntimeServiceClient(connection).Version(t.Context(), &cri.VersionRequest{})
	return err
}
