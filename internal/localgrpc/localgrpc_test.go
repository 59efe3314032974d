package localgrpc

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
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
	testutil.NoError(t, callVersion(t, "unix://"+socket))
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
	testutil.CheckError(t, "a pipe", callVersion(t, `\\.\pipe\x`), errors.ErrUnsupported.Error())
}

func callVersion(t *testing.T, address string) error {
	t.Helper()
	connection, err := Dial(address)
	testutil.NoError(t, err)
	defer func() { _ = connection.Close() }()
	_, err = cri.NewRuntimeServiceClient(connection).Version(t.Context(), &cri.VersionRequest{})
	return err
}

// abandon closes l and leaves its file, as a process that is killed does.
func abandon(t *testing.T, l *net.UnixListener) {
	t.Helper()
	l.SetUnlinkOnClose(false)
	testutil.NoError(t, shutDown(l), l.Close())
}

func TestListen(t *testing.T) {
	t.Parallel()
	needsUnixSockets(t)
	for _, test := range []struct {
		name    string
		prepare func(t *testing.T, path string)
		wantErr string
	}{
		{name: "no file", prepare: func(*testing.T, string) {}},
		{name: "of a killed process", prepare: func(t *testing.T, path string) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			testutil.NoError(t, err)
			abandon(t, l)
		}},
		{name: "of a live process", prepare: func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			testutil.NoError(t, err)
			t.Cleanup(func() { _ = l.Close() })
		}, wantErr: ErrInUse.Error()},
		{name: "an ordinary file", prepare: func(t *testing.T, path string) {
			testutil.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
		}, wantErr: "address already in use"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(testutil.ShortDir(t), "s.sock")
			test.prepare(t, path)
			before, _ := os.Lstat(path)
			l, err := Listen(t.Context(), path)
			if test.wantErr != "" {
				testutil.CheckError(t, "listen", err, test.wantErr)
				testutil.CheckError(t, "listen", err, path)
				if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
					t.Errorf("the file was changed: %v", err)
				}
				return
			}
			testutil.NoError(t, err)
			checkRestricted(t, path)
			if !l.Intact() {
				t.Error("a new listener is not intact")
			}
			testutil.NoError(t, l.Close())
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket still exists: %v", err)
			}
		})
	}
}

// TestListenKeepsUnprobedSocket: whether a process listens is unknown if it cannot be asked.
func TestListenKeepsUnprobedSocket(t *testing.T) {
	t.Parallel()
	needsUnixSockets(t)
	path := filepath.Join(testutil.ShortDir(t), "s.sock")
	theirs, err := Listen(t.Context(), path)
	testutil.NoError(t, err)
	defer func() { _ = theirs.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l, err := Listen(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, error %v, want %v", l, err, context.Canceled)
	}
	if !theirs.Intact() {
		t.Error("the socket of a live process was removed")
	}
}

func TestListenOnTooLongPath(t *testing.T) {
	t.Parallel()
	_, err := Listen(t.Context(), filepath.Join(t.TempDir(), strings.Repeat("x", 108)))
	testutil.CheckError(t, "listen", err, "shorter directory")
}

func TestCloseKeepsSocketOfOtherProcess(t *testing.T) {
	t.Parallel()
	needsUnixSockets(t)
	path := filepath.Join(testutil.ShortDir(t), "s.sock")
	if (FileIdentity{}).Same(FileIdentity{}) {
		t.Error("two zero identities are the same")
	}
	ours, err := Listen(t.Context(), path)
	testutil.NoError(t, err)
	testutil.NoError(t, os.Remove(path))
	if ours.Intact() {
		t.Error("intact without its file")
	}
	theirs, err := Listen(t.Context(), path)
	testutil.NoError(t, err)
	defer func() { _ = theirs.Close() }()
	if ours.Intact() {
		t.Error("intact with another listener's file")
	}
	testutil.NoError(t, ours.Close())
	if !theirs.Intact() {
		t.Error("the other listener's socket was removed")
	}
}
