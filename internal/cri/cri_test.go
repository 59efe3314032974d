package cri

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
)

// config is what containerd 1.7.35 and 2.4.2 answer, shortened to what is read;
// options are null there when a handler has none.
const config = `{"containerd":{"defaultRuntimeName":"runc","runtimes":{
	"hv":{"runtimeType":"io.containerd.runhcs.v1","runtimePath":"","PodAnnotations":["a"],"ContainerAnnotations":null,"sandboxer":"podsandbox","options":{"SandboxIsolation":1,"ScrubLogs":true}},
	"runc":{"runtimeType":"io.containerd.runc.v2","runtimePath":"/x/containerd-shim-directx-v1","PodAnnotations":[],"ContainerAnnotations":["b"],
		"sandboxMode":"shim","options":{"BinaryName":"/x/crun"}}}},
	"cni":{"binDir":"/opt"}}`

const runhcs, runc = "io.containerd.runhcs.v1", "io.containerd.runc.v2"

type runtimeService struct {
	runtime.UnimplementedRuntimeServiceServer
}

func (runtimeService) Status(_ context.Context, r *runtime.StatusRequest) (*runtime.StatusResponse, error) {
	if !r.Verbose {
		return &runtime.StatusResponse{}, nil
	}
	return &runtime.StatusResponse{Info: map[string]string{"config": config}}, nil
}

func (runtimeService) Version(context.Context, *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	return &runtime.VersionResponse{RuntimeVersion: "v2.4.2"}, nil
}

func (runtimeService) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{Items: []*runtime.PodSandbox{
		{Metadata: &runtime.PodSandboxMetadata{Namespace: "a", Name: "usual", Uid: "uid-1"}},
		{Metadata: &runtime.PodSandboxMetadata{Namespace: "a", Name: "usual", Uid: "uid-1", Attempt: 1}, State: runtime.PodSandboxState_SANDBOX_NOTREADY},
		{Metadata: &runtime.PodSandboxMetadata{Namespace: "a", Name: "ended", Uid: "uid-2"}, State: runtime.PodSandboxState_SANDBOX_NOTREADY},
	}}, nil
}

// synchronized has two pods, whose containers have these environments.
type synchronized struct {
	runtime.UnimplementedRuntimeServiceServer
	env    []int // bytes
	exited int   // the index of one that has ended
	gone   int   // how many of the last are removed after the list was made
	broken bool
}

func (synchronized) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{Items: []*runtime.PodSandbox{
		{Id: "0", Metadata: &runtime.PodSandboxMetadata{Namespace: "a", Name: "even"}}, {Id: "1", Metadata: &runtime.PodSandboxMetadata{Namespace: "a", Name: "odd"}},
	}}, nil
}

func (s synchronized) ListContainers(context.Context, *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	var list runtime.ListContainersResponse
	for i := range s.env {
		c := &runtime.Container{Id: strconv.Itoa(i), PodSandboxId: strconv.Itoa(i % 2), State: runtime.ContainerState_CONTAINER_RUNNING}
		if i == s.exited {
			c.State = runtime.ContainerState_CONTAINER_EXITED
		}
		list.Containers = append(list.Containers, c)
	}
	return &list, nil
}

func (s synchronized) ContainerStatus(_ context.Context, r *runtime.ContainerStatusRequest) (*runtime.ContainerStatusResponse, error) {
	i, err := strconv.Atoi(r.GetContainerId())
	if err == nil && i >= len(s.env)-s.gone {
		err = status.Error(codes.NotFound, "no such container")
	}
	if err != nil || s.broken || !r.GetVerbose() {
		return &runtime.ContainerStatusResponse{}, err
	}
	env := strings.Repeat("x", s.env[i])
	info := `{"config":{"envs":[{"key":"` + env + `"}]},"runtimeSpec":{"process":{"env":["` + env + `"]},"linux":{"seccomp":"` + env + `"}}}`
	return &runtime.ContainerStatusResponse{Info: map[string]string{"info": info}}, nil
}

// TestCheckSynchronizeSize: NRI sends each environment once, and no container that has ended.
func TestCheckSynchronizeSize(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, test := range map[string]struct {
		service synchronized
		want    string
	}{
		"none":                {service: synchronized{}},
		"below the limit":     {service: synchronized{env: []int{mib, mib, mib, mib - 20<<10}, exited: -1}},
		"one has ended":       {service: synchronized{env: []int{mib, mib, mib, mib, mib - 20<<10}, exited: 2}},
		"one was removed":     {service: synchronized{env: []int{mib, mib, mib, mib - 20<<10, mib}, exited: -1, gone: 1}},
		"above the limit":     {synchronized{env: []int{mib, 2 * mib, mib}, exited: -1}, "4096 KiB to a plugin; delete the largest, such as pod a/even with 20"},
		"one pod is larger":   {synchronized{env: []int{0, 2 * mib, mib, mib}, exited: -1}, "such as pod a/odd with 30"},
		"not in the response": {synchronized{env: []int{0}, exited: -1, broken: true}, "get the size of container 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testutil.CheckError(t, "check", CheckSynchronizeSize(t.Context(), serve(t, test.service)), test.want)
		})
	}
}

// serve returns the socket of a service.
func serve(t *testing.T, service runtime.RuntimeServiceServer) (socket string) {
	t.Helper()
	socket = filepath.Join(testutil.ShortDir(t), "s")
	grpctest.Serve(t, socket, &runtime.RuntimeService_ServiceDesc, service)
	return socket
}

func TestLoad(t *testing.T) {
	t.Parallel()
	loaded, err := ReadConfig(t.Context(), serve(t, runtimeService{}))
	want := Config{Default: "runc", Version: "v2.4.2", Handlers: []Handler{
		{Name: "hv", RuntimeType: runhcs, Sandboxer: "podsandbox", Options: Options{SandboxIsolation: 1}},
		{Name: "runc", RuntimeType: runc, RuntimePath: "/x/containerd-shim-directx-v1", SandboxMode: "shim", Sandboxer: "shim", Options: Options{BinaryName: "/x/crun"}},
	}}
	if diff := cmp.Diff(want, loaded); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "{", `{"containerd":{"runtimes":[]}}`} {
		if _, _, err := parseStatus(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	hyperV := Handler{Name: "hv", RuntimeType: runhcs, Options: Options{SandboxIsolation: 1}}
	for name, test := range map[string]struct {
		os       string
		handlers []Handler
		named    string
		all, one string // in the errors of Check and CheckHandler
	}{
		"Windows":           {"windows", []Handler{{Name: "a", RuntimeType: runhcs}, hyperV}, "a", "", ""},
		"Hyper-V":           {"windows", []Handler{{Name: "a", RuntimeType: runhcs}, hyperV}, "hv", "", "Hyper-V isolation"},
		"Hyper-V alone":     {"windows", []Handler{hyperV}, "hv", "Hyper-V isolation", "Hyper-V isolation"},
		"none":              {"windows", nil, "a", "there is none", `no runtime handler "a"`},
		"of the other":      {"linux", []Handler{{Name: "a", RuntimeType: runhcs}}, "a", "not io.containerd.runc.v2", "not io.containerd.runc.v2"},
		"Linux":             {"linux", []Handler{{Name: "a", RuntimeType: runc, RuntimePath: "/opt/wrapper", Options: Options{BinaryName: "/x/crun"}}}, "", "", ""},
		"another kernel":    {"linux", []Handler{{Name: "a", RuntimeType: runc, Options: Options{BinaryName: "/x/krun"}}}, "a", "their own kernel", "their own kernel"},
		"shim of kata":      {"linux", []Handler{{Name: "a", RuntimeType: runc, RuntimePath: "/x/containerd-shim-kata-v2"}}, "a", "their own kernel", "their own kernel"},
		"another sandboxer": {"linux", []Handler{{Name: "a", RuntimeType: runc, Sandboxer: "shim"}}, "a", "has the sandboxer shim", "has the sandboxer shim"},
		"ignores devices":   {"windows", []Handler{{Name: "a", RuntimeType: runhcs}, {Name: "b", RuntimeType: "io.containerd.process.v2"}}, "a", "ignores the devices", ""},
		"by its path":       {"windows", []Handler{{Name: "a", RuntimeType: runhcs, RuntimePath: `C:\x\containerd-shim-wcowprocess-v2.exe`}}, "a", "ignores the devices", ""},
	} {
		c := Config{Handlers: test.handlers, Default: "a"}
		testutil.CheckError(t, name, c.Check(test.os), test.all)
		testutil.CheckError(t, name, c.CheckHandler(test.named, test.os), test.one)
	}
}

func TestResolveInjection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		configured  policy.Injection
		os, version string
		want        policy.Injection
	}{
		{policy.InjectAuto, "linux", "", policy.InjectByNRI},
		{policy.InjectByShim, "windows", "v2.0.4", policy.InjectByShim},
		{policy.InjectByKubelet, "linux", "", policy.InjectByKubelet},
	} {
		if got := ResolveInjection(test.configured, test.os, test.version); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
	for version, bypasses := range map[string]bool{
		"v1.7.35": false, "v2.0.0": true, "v2.0.5": true, "2.0.4": true, "v2.0.0-rc.1": true, "v2.0.6": false, "v2.0.10": false, "v2.1.0": false, "": false,
	} {
		if got := ResolveInjection(policy.InjectAuto, "windows", version); (got == policy.InjectByKubelet) != bypasses || !bypasses && got != policy.InjectByShim {
			t.Errorf("auto on Windows with containerd %q: %s", version, got)
		}
	}
}
