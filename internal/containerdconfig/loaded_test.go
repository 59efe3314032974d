package containerdconfig

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// config is what containerd 1.7.35 and 2.4.2 answer, shortened to what is read;
// options are null there when a handler has none.
const config = `{"containerd":{"defaultRuntimeName":"runc","runtimes":{
	"hv":{"runtimeType":"io.containerd.runhcs.v1","runtimePath":"","PodAnnotations":["a"],"ContainerAnnotations":null,"options":{"SandboxIsolation":1,"ScrubLogs":true}},
	"runc":{"runtimeType":"io.containerd.runc.v2","runtimePath":"/x/containerd-shim-directx-v1","PodAnnotations":[],"ContainerAnnotations":["b"],"options":null}}},
	"cni":{"binDir":"/opt"}}`

func TestParseStatus(t *testing.T) {
	t.Parallel()
	got, err := parseStatus(config, "windows")
	want := Loaded{OS: "windows", Handlers: []Handler{
		{Name: "hv", RuntimeType: "io.containerd.runhcs.v1", SandboxIsolation: 1, PodAnnotations: []string{"a"}},
		{Name: "runc", RuntimeType: "io.containerd.runc.v2", RuntimePath: "/x/containerd-shim-directx-v1", PodAnnotations: []string{}, ContainerAnnotations: []string{"b"}},
	}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Handler{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"", "{", `{"containerd":{"runtimes":[]}}`} {
		if _, err := parseStatus(bad, "linux"); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

const runhcs, runc, ours = "io.containerd.runhcs.v1", "io.containerd.runc.v2", `C:\x\containerd-shim-directx-v1.exe`

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		os       string
		handlers []Handler
		want     string
	}{
		"all go through it":         {"windows", []Handler{{Name: "a", RuntimeType: runhcs, RuntimePath: ours}, {Name: "hv", RuntimeType: runhcs, SandboxIsolation: 1}}, ""},
		"one of two does":           {"windows", []Handler{{Name: "a", RuntimeType: runhcs}, {Name: "b", RuntimeType: runhcs, RuntimePath: ours}}, ""},
		"none does":                 {"windows", []Handler{{Name: "a", RuntimeType: runhcs}, {Name: "b", RuntimeType: runhcs}}, "runtime handler a is not set; run 'dxctl runtime configure --restart'"},
		"another shim":              {"linux", []Handler{{Name: "a", RuntimeType: runc, RuntimePath: "/opt/other"}}, "a is /opt/other"},
		"only others":               {"linux", []Handler{{Name: "kata", RuntimeType: "io.containerd.kata.v2"}}, "no runtime handler can have GPUs"},
		"only Hyper-V":              {"windows", []Handler{{Name: "hv", RuntimeType: runhcs, SandboxIsolation: 1, RuntimePath: ours}}, "no runtime handler can have GPUs"},
		"runhcs counts on no Linux": {"linux", []Handler{{Name: "a", RuntimeType: runhcs, RuntimePath: ours}, {Name: "runc", RuntimeType: runc}}, "runtime handler runc is not set"},
	} {
		err := Loaded{Handlers: test.handlers, OS: test.os}.Check()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (!errors.Is(err, ErrNotRouted) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}

// containerd 2 does not call a shim's program for the containers of a pod that
// runc's shim runs.
func TestPassedBy(t *testing.T) {
	t.Parallel()
	handlers := func(kind string) []Handler { return []Handler{{Name: "a", RuntimeType: kind, RuntimePath: ours}} }
	for name, test := range map[string]struct {
		loaded Loaded
		want   bool
	}{
		"Linux, 1.7":   {Loaded{OS: "linux", Major: 1, Handlers: handlers("io.containerd.runc.v2")}, true},
		"Linux, 2.x":   {Loaded{OS: "linux", Major: 2, Handlers: handlers("io.containerd.runc.v2")}, false},
		"Windows, 1.7": {Loaded{OS: "windows", Major: 1, Handlers: handlers(runhcs)}, true},
		"Windows, 2.x": {Loaded{OS: "windows", Major: 2, Handlers: handlers(runhcs)}, true},
	} {
		err := test.loaded.Check()
		if (err == nil) != test.want {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (!errors.Is(err, ErrNotRouted) || !strings.Contains(err.Error(), "--served-by nri")) {
			t.Errorf("%s: %v", name, err)
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

func (runtimeService) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{Items: []*cri.PodSandbox{
		{Metadata: &cri.PodSandboxMetadata{Namespace: "a", Name: "usual", Uid: "uid-1"}},
		{Metadata: &cri.PodSandboxMetadata{Namespace: "a", Name: "usual", Uid: "uid-1", Attempt: 1}, State: cri.PodSandboxState_SANDBOX_NOTREADY},
		{Metadata: &cri.PodSandboxMetadata{Namespace: "a", Name: "ended", Uid: "uid-2"}, State: cri.PodSandboxState_SANDBOX_NOTREADY},
	}}, nil
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
		handlers, err := LoadedHandlers(t.Context(), connection)
		if err != nil || len(handlers) != 2 {
			t.Errorf("%s: %v, %v", address, handlers, err)
		}
		pods, err := Pods(t.Context(), connection)
		if diff := cmp.Diff(map[string]Pod{"uid-1": {"a", "usual", true}, "uid-2": {"a", "ended", false}}, pods); err != nil || diff != "" {
			t.Errorf("%s: %v %s", address, err, diff)
		}
		version, err := RunningVersion(t.Context(), connection)
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
