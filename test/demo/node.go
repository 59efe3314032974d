package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/test/bed/fakekubelet"
)

const (
	display  = "directx.microsoft.com/display"
	key      = "directx.microsoft.com/allocation.display"
	shimName = "containerd-shim-directx-v1"
)

// node is a simulated node: directories of its own, and stand-ins for the kubelet
// and for containerd's CRI service.
type node struct {
	dir        string
	kubelet    *fakekubelet.Kubelet
	containerd *grpc.Server
	runtime    *runtimeService
}

// newNode starts the stand-ins of a node with one runtime handler.
func newNode(dir, runtimeType string) (*node, error) {
	n := &node{dir: dir, containerd: grpc.NewServer(), runtime: &runtimeService{runtimeType: runtimeType}}
	for _, name := range []string{"plugins", "run", "state"} {
		if err := os.MkdirAll(n.path(name), 0o700); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("unix", n.path("cri.sock"))
	if err != nil {
		return nil, err
	}
	cri.RegisterRuntimeServiceServer(n.containerd, n.runtime)
	go func() { _ = n.containerd.Serve(listener) }() // close ends it.
	if n.kubelet, err = fakekubelet.Start(n.path("plugins"), ""); err == nil {
		n.kubelet.Windows = runtimeType == windowsRuntime
	}
	return n, err
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) close() {
	n.kubelet.Stop()
	n.containerd.Stop()
}

// The types of the runtime handlers that Windows and Linux nodes have.
const (
	windowsRuntime = "io.containerd.runhcs.v1"
	linuxRuntime   = "io.containerd.runc.v2"
)

// runtimeService has one container, which is started.
type runtimeService struct {
	cri.UnimplementedRuntimeServiceServer
	runtimeType string

	mu sync.Mutex // guards the following field
	pod
}

// pod is a pod of one container: the annotations that it has, and those that the kubelet gives to its container.
type pod struct {
	name                   string
	annotations, container map[string]string
}

func (s *runtimeService) set(p pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pod = p
}

// Version implements the CRI service.
func (*runtimeService) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeVersion: "v1.7.35"}, nil
}

// Status implements the CRI service.
func (s *runtimeService) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	config := fmt.Sprintf(`{"containerd": {"defaultRuntimeName": "default", "runtimes": {"default": {"runtimeType": %q}}}}`, s.runtimeType)
	return &cri.StatusResponse{Info: map[string]string{"config": config}}, nil
}

// ListPodSandbox implements the CRI service.
func (*runtimeService) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{}, nil
}

// ListContainers implements the CRI service.
func (*runtimeService) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{}, nil
}

// ContainerStatus implements the CRI service.
func (s *runtimeService) ContainerStatus(context.Context, *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{Annotations: s.container}}, nil
}

// PodSandboxStatus implements the CRI service.
func (s *runtimeService) PodSandboxStatus(context.Context, *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{Annotations: s.annotations}}, nil
}

// advertise runs directx-advertiser on a node and prints what the kubelet has then.
func (d *demo) advertise(ctx context.Context, n *node, flags ...string) error {
	flags = append(flags, "--replicas", "4", "--state-dir", n.path("state"), "--runtime-dir", n.path("run"),
		"--cri-socket", n.path("cri.sock"), "--kubelet-dir", n.path("plugins"))
	if err := d.start("directx-advertiser", flags...); err != nil {
		return err
	}
	count, err := n.kubelet.Wait(ctx, display)
	if err != nil {
		log, _ := os.ReadFile(d.path("directx-advertiser.log"))
		return fmt.Errorf("%w\n%s", err, log)
	}
	d.by("kubelet", "allocatable: %s: %d", display, count)
	return nil
}

// allocate prints the allocation of one replica.
func (d *demo) allocate(ctx context.Context, n *node) (*plugin.ContainerAllocateResponse, error) {
	ids, answer, err := n.kubelet.Allocate(ctx, display, 1)
	if err != nil {
		return nil, errors.New(status.Convert(err).Message())
	}
	d.by("kubelet", "chooses %s", ids[0])
	d.by("advertiser", "records that, and answers with an annotation for the container:")
	d.by("", "%s=%s", key, answer.GetAnnotations()[key])
	return answer, nil
}

// windowsSpec returns the OCI spec that containerd writes for a Windows container
// with the kubelet's devices.
func windowsSpec(pod string, devices []*plugin.DeviceSpec) ([]byte, error) {
	spec := specs.Spec{
		Version: "1.1.0",
		Process: &specs.Process{Args: []string{`C:\app\render.exe`}, Cwd: `C:\app`, Env: []string{"DIRECTX_VISIBLE_DEVICES=all"}},
		Windows: &specs.Windows{LayerFolders: []string{`C:\ProgramData\containerd\root\snapshots\42`}},
		Annotations: map[string]string{
			"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "main",
			"io.kubernetes.cri.sandbox-name": pod, "io.kubernetes.cri.sandbox-namespace": "default",
			"io.kubernetes.cri.sandbox-uid": "uid-of-" + pod, "io.kubernetes.cri.sandbox-id": "sandbox-of-" + pod,
		},
	}
	for _, d := range devices {
		idType, id, _ := strings.Cut(d.GetHostPath(), "://")
		spec.Windows.Devices = append(spec.Windows.Devices, specs.WindowsDevice{ID: id, IDType: idType})
	}
	return json.MarshalIndent(spec, "", "  ")
}

// printAdditions prints what the shim added to a config.json. It fails unless the
// container has a GPU, driver files for programs of 32 and 64 bits, and no interlock.
func (d *demo) printAdditions(before, after []byte) error {
	var was, is specs.Spec
	if err := errors.Join(json.Unmarshal(before, &was), json.Unmarshal(after, &is)); err != nil {
		return err
	}
	for _, device := range is.Windows.Devices {
		d.say(fmt.Sprintf("  + windows.devices  %s://%s", device.IDType, device.ID))
	}
	more, left := 0, map[bool]int{true: 2, false: 3} // files to print: for 32-bit programs, and others
	for _, m := range is.Mounts {
		for32Bit := strings.Contains(m.Destination, `\SysWOW64\`)
		if left[for32Bit] == 0 {
			more++
			continue
		}
		left[for32Bit]--
		d.say(fmt.Sprintf("  + mounts           %s <- DRIVER%s", m.Destination, m.Source[strings.LastIndex(m.Source, `\`):]))
	}
	d.say(fmt.Sprintf("  + mounts           %d more driver files", more))
	d.by("", "The driver lists %d of these %d files. The others are tools, such as nvidia-smi.exe.", d.driverFiles, len(is.Mounts))
	for _, entry := range is.Process.Env[len(was.Process.Env):] {
		name, _, _ := strings.Cut(entry, "=")
		d.say("  + process.env      " + name)
	}
	if len(is.Windows.Devices) != 1 || is.Windows.Devices[0].IDType == allocation.InterlockDeviceType || left[false]+left[true] > 0 {
		return errors.New("the shim did not give the container its GPU and the driver's files")
	}
	return nil
}
