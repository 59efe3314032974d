//go:build unix

package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"directx-nri/internal/testutil"
)

// kubeletPods answers as the kubelet does that has these pods.
type kubeletPods struct {
	podresources.UnimplementedPodResourcesListerServer
	names []string
}

func (k kubeletPods) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	list := &podresources.ListPodResourcesResponse{}
	for _, name := range k.names {
		list.PodResources = append(list.PodResources, &podresources.PodResources{Namespace: "default", Name: name, Containers: []*podresources.ContainerResources{{Name: "main"}}})
	}
	return list, nil
}

// sandboxes answers as containerd does that has these pods' sandboxes, ready, each
// as UID/NAME.
type sandboxes struct {
	cri.UnimplementedRuntimeServiceServer
	pods []string
}

func (s sandboxes) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	list := &cri.ListPodSandboxResponse{}
	for _, pod := range s.pods {
		uid, name, _ := strings.Cut(pod, "/")
		list.Items = append(list.Items, &cri.PodSandbox{Metadata: &cri.PodSandboxMetadata{Uid: uid, Namespace: "default", Name: name}})
	}
	return list, nil
}

// serve serves what register registers, and returns the socket.
func serve(t *testing.T, register func(*grpc.Server)) (socket string) {
	t.Helper()
	socket = filepath.Join(testutil.ShortDir(t), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return socket
}

func TestAllocationsAskTheKubeletAndContainerd(t *testing.T) {
	t.Parallel()
	state := holding(t)
	none := filepath.Join(t.TempDir(), "none")
	kubelet := func(names ...string) string {
		return serve(t, func(s *grpc.Server) { podresources.RegisterPodResourcesListerServer(s, kubeletPods{names: names}) })
	}
	containerd := func(pods ...string) string {
		return serve(t, func(s *grpc.Server) { cri.RegisterRuntimeServiceServer(s, sandboxes{pods: pods}) })
	}
	for name, test := range map[string]struct {
		kubelet, containerd string
		args                []string
		want                string // the states, by replica
		stderr              string
	}{
		"all there":                  {kubelet("a", "b"), none, nil, "held held waiting", ""},
		"one is gone":                {kubelet("a"), containerd(), nil, "held stale waiting", ""},
		"gone, and no containerd":    {kubelet("a"), none, nil, "held stale waiting", ""},
		"the kubelet has just begun": {kubelet(), containerd("uid-a/a"), nil, "held stale waiting", ""},
		"another has its name":       {kubelet("a", "b"), containerd("uid-a/a", "uid-new/b"), nil, "held stale waiting", ""},
		"another node's containerd":  {kubelet("a", "b"), containerd("uid-x/x"), nil, "held held waiting", ""},
		"no kubelet":                 {none, containerd("uid-b/b"), nil, "stale held waiting", "The pods are those of containerd"},
		"only what is stale":         {kubelet("a"), containerd(), []string{"--stale"}, "stale", ""},
		"of a namespace":             {kubelet("a", "b"), none, []string{"-n", "default"}, "held held", ""},
	} {
		args := append([]string{"allocations", "--state-dir", state, "--inventory", none,
			"--pod-resources-socket", test.kubelet, "--cri-socket", test.containerd}, test.args...)
		stdout, stderr, err := askApart(t, "", args...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var states []string
		for line := range strings.Lines(stdout) {
			fields := strings.Fields(line)
			states = append(states, fields[len(fields)-1])
		}
		if got := strings.Join(states[1:], " "); got != test.want {
			t.Errorf("%s: %s, want %s\n%s", name, got, test.want, stdout)
		}
		if asked := strings.Contains(stderr, "are those of containerd"); asked != (test.stderr != "") || strings.Contains(stderr, "are unknown") {
			t.Errorf("%s: %s", name, stderr)
		}
	}
}

// What we may not read, the shim may: it is no refusal.
func TestSpecWithoutPermission(t *testing.T) {
	t.Parallel()
	b := newSpecBed(t)
	pod := b.file(t, "pod.json", windowsSpec(true, displayVariable+"="+b.record(t, "GPU")))
	allocations := filepath.Join(b.state, "allocations")
	if err := os.Chmod(allocations, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(allocations, 0o700) })
	testutil.EnforceModes(t)
	if got := b.lines(t, "spec "+pod); !strings.Contains(got, "run dxctl as root") {
		t.Errorf("%s", got)
	}
}
