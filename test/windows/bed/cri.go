//go:build e2e && windows

package bed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// runtime calls f with a client of containerd's CRI plugin.
func (n *Node) runtime(t testing.TB, f func(ctx context.Context, client cri.RuntimeServiceClient) error) error {
	t.Helper()
	return n.connect(t, "", func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, cri.NewRuntimeServiceClient(conn))
	})
}

// Pod is a pod that was started by CRI, as the kubelet does.
type Pod struct {
	ID   string // of its sandbox
	Name string

	config *cri.PodSandboxConfig
}

// RunPod starts a pod's sandbox, until the test ends. A pod has the name as its UID.
func (n *Node) RunPod(t testing.TB, name string, changes ...func(*cri.PodSandboxConfig)) Pod {
	t.Helper()
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Hostname: name,
		Windows:  &cri.WindowsPodSandboxConfig{SecurityContext: &cri.WindowsSandboxSecurityContext{}},
	}
	for _, change := range changes {
		change(config)
	}
	pod := Pod{Name: name, config: config}
	start := func() error {
		return n.runtime(t, func(ctx context.Context, client cri.RuntimeServiceClient) error {
			response, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
			pod.ID = response.GetPodSandboxId()
			return err
		})
	}
	err := start()
	for n.LostProcess(t, err) {
		err = start()
	}
	if err != nil {
		t.Fatalf("start the sandbox of pod %s: %v", name, err)
	}
	t.Cleanup(func() {
		err := n.runtime(t, func(ctx context.Context, client cri.RuntimeServiceClient) error {
			if _, err := client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.ID}); err != nil {
				return err
			}
			_, err := client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.ID})
			return n.removed(err)
		})
		if err != nil {
			t.Errorf("remove pod %s: %v", name, err)
		}
	})
	return pod
}

// Annotated returns a change of a pod that adds annotations.
func Annotated(annotations map[string]string) func(*cri.PodSandboxConfig) {
	return func(c *cri.PodSandboxConfig) { c.Annotations = annotations }
}

// WithAnnotations returns p with annotations that its sandbox does not have: it was annotated later.
func (p Pod) WithAnnotations(annotations map[string]string) Pod {
	p.config = proto.CloneOf(p.config)
	p.config.Annotations = annotations
	return p
}

// HostProcess makes a pod one of the host's processes.
func HostProcess(c *cri.PodSandboxConfig) { c.Windows.SecurityContext.HostProcess = true }

// NewContainer returns the request for a container of a pod.
func (n *Node) NewContainer(name string) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata:    &cri.ContainerMetadata{Name: name},
		Image:       &cri.ImageSpec{Image: n.ImageName()},
		Command:     n.Forever(),
		Annotations: map[string]string{},
		Windows:     &cri.WindowsContainerConfig{SecurityContext: &cri.WindowsContainerSecurityContext{}},
	}
}

// NewAllocated returns the request for a container with the advertiser's answer, as the kubelet sends it.
func (n *Node) NewAllocated(name string, id allocation.ID) *cri.ContainerConfig {
	c := n.NewContainer(name)
	c.Annotations[allocation.AnnotationKey(Display)] = string(id)
	AddDevice(c, allocation.InterlockDeviceType, allocation.InterlockDeviceID)
	return c
}

// AddDevice adds a device, as kubelet injection does.
func AddDevice(c *cri.ContainerConfig, idType, id string) {
	c.Devices = append(c.Devices, &cri.Device{HostPath: idType + "://" + id})
}

// StartContainer creates and starts a container of a pod and returns its ID. It ends with the pod.
func (n *Node) StartContainer(t testing.TB, pod Pod, c *cri.ContainerConfig) (id string, err error) {
	t.Helper()
	c.Windows.SecurityContext.HostProcess = pod.config.GetWindows().GetSecurityContext().GetHostProcess()
	start := func() error {
		return n.runtime(t, func(ctx context.Context, client cri.RuntimeServiceClient) error {
			created, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod.ID, Config: c, SandboxConfig: pod.config})
			if err != nil {
				return err
			}
			id = created.GetContainerId()
			_, err = client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id})
			return err
		})
	}
	c.Metadata.Attempt = n.attempts.Add(1) // Under Wine, one that was removed can keep its name.
	for err = start(); n.LostProcess(t, err); err = start() {
		c.Metadata.Attempt = n.attempts.Add(1)
	}
	return id, err
}

// MustStartContainer is [Node.StartContainer] for a container that has to start, with those GPUs.
func (n *Node) MustStartContainer(t testing.TB, pod Pod, c *cri.ContainerConfig, gpus ...GPU) (id string) {
	t.Helper()
	id, err := n.StartContainer(t, pod, c)
	if err != nil {
		t.Fatalf("start container %s of pod %s: %v", c.GetMetadata().GetName(), pod.Name, err)
	}
	n.MustHave(t, id, gpus...)
	return id
}

// RemoveContainer stops and removes a container of a pod. Nothing of it is left.
func (n *Node) RemoveContainer(t testing.TB, id string) {
	t.Helper()
	err := n.runtime(t, func(ctx context.Context, client cri.RuntimeServiceClient) error {
		if _, err := client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id}); err != nil {
			return err
		}
		_, err := client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
		return n.removed(err)
	})
	testutil.NoError(t, err)
	n.MustLeaveNothing(t, id)
}

// removed returns the error of a removal, except that of os.RemoveAll under Wine.
func (n *Node) removed(err error) error {
	if n.Doubled && err != nil && strings.Contains(err.Error(), "Invalid function") {
		return nil
	}
	return err
}

// cniPlugin is the name of the network plugin under Wine, which is this program.
const cniPlugin = "double"

// installCNI installs the network plugin under Wine where containerd looks for it by default.
func installCNI() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	bin, conf := usualDir+`\cni\bin`, usualDir+`\cni\conf`
	return errors.Join(os.MkdirAll(bin, 0o700), os.MkdirAll(conf, 0o700), copyFile(self, bin+`\`+cniPlugin+".exe"),
		os.WriteFile(conf+`\double.conf`, []byte(`{"cniVersion": "0.4.0", "name": "double", "type": "`+cniPlugin+`"}`), 0o600))
}

// cniVariable is the environment variable with which this program is a network plugin.
// https://www.cni.dev/docs/spec/
const cniVariable = "CNI_COMMAND"

// answerCNI is a network plugin that creates nothing.
func answerCNI() {
	switch os.Getenv(cniVariable) {
	case "ADD":
		fmt.Print(`{"cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": "none"}], "ips": [{"version": "4", "interface": 0, "address": "10.0.0.2/24"}]}`)
	case "VERSION":
		fmt.Print(`{"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}`)
	}
}

// cni writes a configuration of the network plugin with which containerd's CI runs pods on Windows
// itself, and returns the part of containerd's configuration file that selects it.
func (n *Node) cni(t testing.TB) string {
	t.Helper()
	// Windows has one network of this type, which is Docker's if that runs. The plugin creates
	// it otherwise. https://github.com/microsoft/windows-container-networking
	gateway := &net.IPNet{IP: net.IPv4(172, 30, 64, 1), Mask: net.CIDRMask(20, 32)}
	if nat, err := net.InterfaceByName("vEthernet (nat)"); err == nil {
		addresses, _ := nat.Addrs() // None is as without the network.
		for _, address := range addresses {
			if ip, ok := address.(*net.IPNet); ok && ip.IP.To4() != nil {
				gateway = ip
			}
		}
	}
	subnet := &net.IPNet{IP: gateway.IP.Mask(gateway.Mask), Mask: gateway.Mask}
	n.File(t, `cni\nat.conf`, fmt.Sprintf(
		`{"cniVersion": "0.2.0", "name": "nat", "type": "NAT", "ipam": {"subnet": "%s", "routes": [{"GW": "%s"}]}}`, subnet, gateway.IP))
	return fmt.Sprintf("\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = '%s'\n  conf_dir = '%s'\n", n.programs, n.Path("cni"))
}
