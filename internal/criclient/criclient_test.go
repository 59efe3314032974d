package criclient

import (
	"context"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
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

const runhcs, runc, ours = "io.containerd.runhcs.v1", "io.containerd.runc.v2", `C:\x\containerd-shim-directx-v1.exe`

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

// synchronized has two pods, whose containers have these environments.
type synchronized struct {
	cri.UnimplementedRuntimeServiceServer
	env    []int // bytes
	exited int   // the index of one that has ended
	gone   int   // how many of the last are removed after the list was made
	broken bool
}

func (synchronized) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{Items: []*cri.PodSandbox{
		{Id: "0", Metadata: &cri.PodSandboxMetadata{Namespace: "a", Name: "even"}}, {Id: "1", Metadata: &cri.PodSandboxMetadata{Namespace: "a", Name: "odd"}},
	}}, nil
}

func (s synchronized) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	var list cri.ListContainersResponse
	for i := range s.env {
		c := &cri.Container{Id: strconv.Itoa(i), PodSandboxId: strconv.Itoa(i % 2), State: cri.ContainerState_CONTAINER_RUNNING}
		if i == s.exited {
			c.State = cri.ContainerState_CONTAINER_EXITED
		}
		list.Containers = append(list.Containers, c)
	}
	return &list, nil
}

func (s synchronized) ContainerStatus(_ context.Context, r *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	i, err := strconv.Atoi(r.GetContainerId())
	if err == nil && i >= len(s.env)-s.gone {
		err = status.Error(codes.NotFound, "no such container")
	}
	if err != nil || s.broken || !r.GetVerbose() {
		return &cri.ContainerStatusResponse{}, err
	}
	env := strings.Repeat("x", s.env[i])
	info := `{"config":{"envs":[{"key":"` + env + `"}]},"runtimeSpec":{"process":{"env":["` + env + `"]},"linux":{"seccomp":"` + env + `"}}}`
	return &cri.ContainerStatusResponse{Info: map[string]string{"info": info}}, nil
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
func serve(t *testing.T, service cri.RuntimeServiceServer) (socket string) {
	t.Helper()
	socket = filepath.Join(testutil.ShortDir(t), "s")
	grpctest.Serve(t, socket, &cri.RuntimeService_ServiceDesc, service)
	return socket
}

func TestLoad(t *testing.T) {
	t.Parallel()
	socket := serve(t, runtimeService{})
	for _, address := range []string{socket, "unix://" + socket, "unix:" + socket} {
		loaded, err := ReadRunning(t.Context(), address)
		want := RunningConfig{Default: "runc", OS: runtime.GOOS, Version: "v2.4.2", Major: 2, Handlers: []containerdconfig.Handler{
			{Name: "hv", RuntimeType: runhcs, SandboxIsolation: 1, Sandboxer: "podsandbox", PodAnnotations: []string{"a"}},
			{Name: "runc", RuntimeType: runc, RuntimePath: "/x/containerd-shim-directx-v1", PodAnnotations: []string{}, ContainerAnnotations: []string{"b"}, Sandboxer: "shim", BinaryName: "/x/crun"},
		}}
		if diff := cmp.Diff(want, loaded, cmpopts.IgnoreUnexported(containerdconfig.Handler{})); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", address, err, diff)
		}
		pods, err := ReadPods(t.Context(), address)
		if diff := cmp.Diff(Pods{"uid-1": {"a", "usual", true}, "uid-2": {"a", "ended", false}}, pods); err != nil || diff != "" {
			t.Errorf("%s: %v %s", address, err, diff)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "{", `{"containerd":{"runtimes":[]}}`} {
		if _, _, err := parseStatus(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	type parsed struct {
		major, minor int
		ok           bool
	}
	for version, want := range map[string]parsed{
		"v1.7.35": {1, 7, true}, "2.4.2": {2, 4, true}, "v2.0.0-rc.1": {2, 0, true}, "v12.1": {12, 1, true}, "v2": {2, 0, false}, "": {}, "main": {},
	} {
		if major, minor, ok := ParseVersion(version); (parsed{major, minor, ok}) != want {
			t.Errorf("%q: %d, %d, %t", version, major, minor, ok)
		}
	}
}
