//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"directx-nri/advertiser"
	"directx-nri/discovery"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/shimfile"
	"directx-nri/internal/testutil"
)

// containerd is one whose default handler has a runtime_path. The handler other
// has none, and is there when it is said so.
type containerd struct {
	cri.UnimplementedRuntimeServiceServer

	mu        sync.Mutex
	path      string
	other     bool
	asked     int
	sandboxes []*cri.PodSandbox
}

func (c *containerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	more := ""
	if c.other {
		more = `, "other": {"runtimeType": "io.containerd.runc.v2"}`
	}
	config := fmt.Sprintf(`{"containerd": {"defaultRuntimeName": "usual", "runtimes": {"usual": {"runtimeType": "io.containerd.runc.v2", "runtimePath": %q}%s}}}`, c.path, more)
	return &cri.StatusResponse{Info: map[string]string{"config": config}}, nil
}

func (*containerd) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeVersion: "v1.7.35"}, nil
}

func (c *containerd) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &cri.ListPodSandboxResponse{Items: c.sandboxes}, nil
}

func (c *containerd) set(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.path = path
}

// serve serves CRI at path until stop is called.
func (c *containerd) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	return serve(t, path, func(server *grpc.Server) { cri.RegisterRuntimeServiceServer(server, c) })
}

// kubelet serves PodResources: replica A::0 is held by a pod.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	pod   string
	asked atomic.Int64
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.asked.Add(1)
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Namespace: "default", Name: k.pod,
		Containers: []*podresources.ContainerResources{{Devices: []*podresources.ContainerDevices{{ResourceName: advertiser.ResourceDisplay, DeviceIds: []string{"A::0"}}}}},
	}}}, nil
}

func serve(t *testing.T, path string, register func(*grpc.Server)) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	stop = sync.OnceFunc(func() { server.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

// podResources is the kubelet's socket beside containerd's.
func podResources(criSocket string) string { return filepath.Join(filepath.Dir(criSocket), "k") }

func newGate(t *testing.T, socket string) *shimGate {
	t.Helper()
	gate, err := newShimGate(socket, podResources(socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gate.Close)
	// Each question finds the last answer too old.
	now := time.Now()
	gate.now = func() time.Time { now = now.Add(answerAge); return now }
	return gate
}

func TestShimGate(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	shim := filepath.Join(folder, shimfile.Base)
	if err := os.WriteFile(shim, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		path  string
		want  error
		words string
	}{
		"routed":        {path: shim},
		"not routed":    {path: "", want: containerdconfig.ErrNotRouted, words: "runtime handler usual is not set; run 'dxctl runtime configure --restart'"},
		"another shim":  {path: "/usr/bin/other", want: containerdconfig.ErrNotRouted, words: "/usr/bin/other"},
		"shim is gone":  {path: filepath.Join(folder, "gone", shimfile.Base), want: errShimMissing, words: "run 'dxctl runtime install'"},
		"no containerd": {path: "none", words: "/s right?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "s")
			if test.path != "none" {
				(&containerd{path: test.path}).serve(t, socket)
			}
			_, err := newGate(t, socket).Routes(t.Context())
			if (err == nil) != (test.want == nil && test.words == "") || !errors.Is(err, test.want) && test.want != nil {
				t.Fatalf("error %v, want %v", err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), test.words) {
				t.Errorf("error %v, want one that says %q", err, test.words)
			}
		})
	}
}

func TestShimGateAsksOnceForMany(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	c := &containerd{}
	c.serve(t, socket)
	gate := newGate(t, socket)
	now := time.Now()
	gate.now = func() time.Time { return now }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := gate.Routes(ended); err == nil || errors.Is(err, containerdconfig.ErrNotRouted) {
		t.Errorf("for one who has gone: %v", err)
	}
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			if _, err := gate.Routes(t.Context()); !errors.Is(err, containerdconfig.ErrNotRouted) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if c.asked != 1 {
		t.Errorf("asked %d times", c.asked)
	}
	now = now.Add(answerAge)
	if _, err := gate.Routes(t.Context()); !errors.Is(err, containerdconfig.ErrNotRouted) || c.asked != 2 {
		t.Errorf("later: %v, asked %d times", err, c.asked)
	}
}

func TestStartOfAPod(t *testing.T) {
	t.Parallel()
	sandbox := func(name, handler string) *cri.PodSandbox {
		return &cri.PodSandbox{Metadata: &cri.PodSandboxMetadata{Namespace: "default", Name: name}, RuntimeHandler: handler}
	}
	for name, test := range map[string]struct {
		// oneHandler: there is no other. noKubelet: none listens.
		oneHandler, noKubelet bool
		sandboxes             []*cri.PodSandbox
		// holder is the pod that the kubelet names.
		holder string
		want   string
		// asks tells that the kubelet is to be asked.
		asks bool
	}{
		"nothing is asked where all are served":   {oneHandler: true, noKubelet: true},
		"only pods that are served":               {sandboxes: []*cri.PodSandbox{sandbox("gpu", ""), sandbox("x", "usual")}, noKubelet: true},
		"a pod that is served":                    {sandboxes: []*cri.PodSandbox{sandbox("gpu", ""), sandbox("x", "other")}, holder: "gpu", asks: true},
		"a pod that is not":                       {sandboxes: []*cri.PodSandbox{sandbox("gpu", "other"), sandbox("x", "")}, holder: "gpu", asks: true, want: "pod default/gpu runs by the runtime handler other"},
		"a pod that the kubelet does not name":    {sandboxes: []*cri.PodSandbox{sandbox("gpu", "other")}, noKubelet: true, want: "is --pod-resources-socket right?"},
		"a pod that containerd does not have":     {sandboxes: []*cri.PodSandbox{sandbox("x", "other")}, holder: "gpu", asks: true, want: "no sandbox"},
		"a containerd that has no pod":            {holder: "gpu", want: "is --cri-socket that of the kubelet's containerd?"},
		"a pod of the same name in another place": {sandboxes: []*cri.PodSandbox{sandbox("gpu", "other"), {Metadata: &cri.PodSandboxMetadata{Namespace: "team", Name: "gpu"}}}, holder: "gpu", asks: true, want: "default/gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := testutil.ShortDir(t)
			shim, socket := filepath.Join(folder, shimfile.Base), filepath.Join(folder, "s")
			if err := os.WriteFile(shim, nil, 0o700); err != nil {
				t.Fatal(err)
			}
			(&containerd{path: shim, other: !test.oneHandler, sandboxes: test.sandboxes}).serve(t, socket)
			k := &kubelet{pod: test.holder}
			if !test.noKubelet {
				serve(t, podResources(socket), func(server *grpc.Server) { podresources.RegisterPodResourcesListerServer(server, k) })
			}
			err := newGate(t, socket).Ready(t.Context(), advertiser.Start{Resource: advertiser.ResourceDisplay, ReplicaIDs: []string{"A::0"}})
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if asked := k.asked.Load() > 0; asked != test.asks {
				t.Errorf("the kubelet was asked: %t", asked)
			}
		})
	}
}

func TestStartWhereNothingIsRouted(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(testutil.ShortDir(t), "s")
	gate := newGate(t, socket)
	if err := gate.Ready(t.Context(), advertiser.Start{}); err == nil || !strings.Contains(err.Error(), "is containerd running, and is --cri-socket "+socket+" right?") {
		t.Errorf("no containerd: %v", err)
	}
	(&containerd{}).serve(t, socket)
	if err := newGate(t, socket).Ready(t.Context(), advertiser.Start{}); !errors.Is(err, containerdconfig.ErrNotRouted) {
		t.Errorf("got %v", err)
	}
}

// oneGPU is a source with one device.
type oneGPU struct{ discovery.Source }

func (oneGPU) Devices(context.Context) ([]discovery.Device, error) {
	return []discovery.Device{{InstanceID: "GPU"}}, nil
}

func TestGatedSource(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	shim, socket := filepath.Join(folder, shimfile.Base), filepath.Join(folder, "s")
	if err := os.WriteFile(shim, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	log := logrus.New()
	log.SetOutput(&lines)
	told := func(when, words string, times int) {
		t.Helper()
		if got := strings.Count(lines.String(), words); got != times {
			t.Errorf("%s: logged %d times, want %d: %s", when, got, times, lines.String())
		}
	}
	source := &gatedSource{Source: oneGPU{}, gate: newGate(t, socket).Routes, log: log}
	check := func(when string, want int, wantErr bool) {
		t.Helper()
		devices, err := source.Devices(t.Context())
		if len(devices) != want || (err != nil) != wantErr {
			t.Errorf("%s: %v, %v", when, devices, err)
		}
	}
	check("no containerd", 0, true)
	c := &containerd{}
	stop := c.serve(t, socket)
	source.gate = newGate(t, socket).Routes // dials anew at once
	check("not configured", 0, true)
	c.set(shim)
	check("configured", 1, false)
	check("nothing new", 1, false)
	told("configured", "starts containers by the runtime shim", 1)
	c.mu.Lock()
	c.other = true
	c.mu.Unlock()
	check("not for all", 1, false)
	check("nothing new", 1, false)
	told("not for all", "handlers=usual others=other", 1)
	stop()
	check("containerd restarts", 1, false)
	c.serve(t, socket)
	source.gate = newGate(t, socket).Routes
	check("containerd is back", 1, false)
	c.set("")
	check("unconfigured", 0, false)
	c.set(shim)
	check("configured again", 1, false)
	if err := os.Remove(shim); err != nil {
		t.Fatal(err)
	}
	check("the shim is gone", 0, false)
}
