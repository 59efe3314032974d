package crihandlers

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// config is what containerd 1.7.35 and 2.4.2 answer, shortened to what is read;
// options are null there when a handler has none.
const config = `{"containerd":{"defaultRuntimeName":"runc","runtimes":{
	"hv":{"runtimeType":"io.containerd.runhcs.v1","runtimePath":"","PodAnnotations":["a"],"ContainerAnnotations":null,"options":{"SandboxIsolation":1,"ScrubLogs":true}},
	"runc":{"runtimeType":"io.containerd.runc.v2","runtimePath":"/x/containerd-shim-directx-v1","PodAnnotations":[],"ContainerAnnotations":["b"],"options":null}}},
	"cni":{"binDir":"/opt"}}`

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := parse(config)
	want := []Handler{
		{Name: "hv", RuntimeType: "io.containerd.runhcs.v1", SandboxIsolation: 1, PodAnnotations: []string{"a"}},
		{Name: "runc", RuntimeType: "io.containerd.runc.v2", RuntimePath: "/x/containerd-shim-directx-v1", PodAnnotations: []string{}, ContainerAnnotations: []string{"b"}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"", "{", `{"containerd":{"runtimes":[]}}`} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	const runhcs, runc, shim = "io.containerd.runhcs.v1", "io.containerd.runc.v2", `C:\x\containerd-shim-directx-v1.exe`
	for name, test := range map[string]struct {
		os       string
		handlers []Handler
		want     string
	}{
		"all go through it":         {"windows", []Handler{{Name: "a", RuntimeType: runhcs, RuntimePath: shim}, {Name: "hv", RuntimeType: runhcs, SandboxIsolation: 1}}, ""},
		"one does not":              {"windows", []Handler{{Name: "a", RuntimeType: runhcs, RuntimePath: shim}, {Name: "b", RuntimeType: runhcs}}, "runtime handler b is not set; run 'dxctl runtime configure --restart'"},
		"another shim":              {"linux", []Handler{{Name: "a", RuntimeType: runc, RuntimePath: "/opt/other"}}, "a is /opt/other"},
		"only others":               {"linux", []Handler{{Name: "kata", RuntimeType: "io.containerd.kata.v2"}}, "no runtime handler can have GPUs"},
		"only Hyper-V":              {"windows", []Handler{{Name: "hv", RuntimeType: runhcs, SandboxIsolation: 1}}, "no runtime handler can have GPUs"},
		"runhcs counts on no Linux": {"linux", []Handler{{Name: "a", RuntimeType: runhcs}, {Name: "runc", RuntimeType: runc, RuntimePath: "/x/containerd-shim-directx-v1"}}, ""},
	} {
		err := check(test.handlers, test.os)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (!errors.Is(err, ErrNotRouted) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}

type runtimeService struct {
	cri.UnimplementedRuntimeServiceServer
}

func (runtimeService) Status(_ context.Context, r *cri.StatusRequest) (*cri.StatusResponse, error) {
	if !r.Verbose {
		return &cri.StatusResponse{}, nil
	}
	return &cri.StatusResponse{Info: map[string]string{"config": config}}, nil
}

func (runtimeService) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeVersion: "v2.4.2"}, nil
}

func TestOverASocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, runtimeService{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	for _, address := range []string{socket, "unix://" + socket, "unix:" + socket} {
		connection, err := Dial(address)
		if err != nil {
			t.Fatal(err)
		}
		handlers, err := Handlers(t.Context(), connection)
		if err != nil || len(handlers) != 2 {
			t.Errorf("%s: %v, %v", address, handlers, err)
		}
		version, err := Version(t.Context(), connection)
		if err != nil || Major(version) != 2 {
			t.Errorf("%s: %s, %v", address, version, err)
		}
		connection.Close()
	}
}

func TestMajor(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]int{"v1.7.35": 1, "2.4.2": 2, "v2.0.0-rc.1": 2, "": 0, "main": 0, "v12.1": 12} {
		if got := Major(version); got != want {
			t.Errorf("%q: %d", version, got)
		}
	}
}
