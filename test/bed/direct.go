//go:build e2e && linux

package bed

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/allocation"
)

// Direct is a pod sandbox that a test makes through CRI, as the kubelet does, to choose
// the moment of each step.
type Direct struct {
	n      *Node
	ID     string // the sandbox's
	config *cri.PodSandboxConfig
	next   uint32
}

// RunSandbox makes a pod sandbox as the kubelet would, and removes it when the
// test ends. A running kubelet removes it too, as a pod that does not exist.
func (n *Node) RunSandbox(t testing.TB, name string) *Direct {
	t.Helper()
	n.nextPod++
	unique := fmt.Sprintf("%s-%d", name, n.nextPod)
	d := &Direct{n: n, config: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: unique, Uid: "uid-of-" + unique, Namespace: "default"},
		Labels: map[string]string{
			"io.kubernetes.pod.name": unique, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "uid-of-" + unique,
		},
		LogDirectory: filepath.Join(n.Dir, "direct"),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: n.cgroup,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER},
			},
		},
	}}
	response, err := n.CRI.RunPodSandbox(context.Background(), &cri.RunPodSandboxRequest{Config: d.config})
	if err != nil {
		t.Fatalf("make a pod sandbox: %v", err)
	}
	d.ID = response.GetPodSandboxId()
	t.Cleanup(func() { d.Remove(t) })
	return d
}

// Create creates a container in the sandbox with what the advertiser answered for
// it, and returns its ID.
func (d *Direct) Create(name string, answer Answer) (id string, err error) {
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name, Attempt: d.next},
		Image:    &cri.ImageSpec{Image: Image},
		Command:  []string{"/bin/sh", "-c", Wait},
		Mounts:   []*cri.Mount{{HostPath: d.n.reports, ContainerPath: reportDir}},
		Labels:   map[string]string{"io.kubernetes.container.name": name},
		Linux:    &cri.LinuxContainerConfig{},

		Annotations: answer.GetAnnotations(),
	}
	for key, value := range answer.GetEnvs() {
		config.Envs = append(config.Envs, &cri.KeyValue{Key: key, Value: []byte(value)})
	}
	if len(answer.GetMounts()) > 0 {
		config.Command = []string{"/bin/sh", "-c", reportMissingGPU + Wait, d.config.GetMetadata().GetName() + "/" + name}
	}
	for _, m := range answer.GetMounts() {
		config.Mounts = append(config.Mounts, &cri.Mount{HostPath: m.GetHostPath(), ContainerPath: m.GetContainerPath(), Readonly: m.GetReadOnly()})
	}
	for _, device := range answer.GetCdiDevices() {
		config.CDIDevices = append(config.CDIDevices, &cri.CDIDevice{Name: device.GetName()})
	}
	d.next++
	response, err := d.n.CRI.CreateContainer(context.Background(), &cri.CreateContainerRequest{PodSandboxId: d.ID, Config: config, SandboxConfig: d.config})
	return response.GetContainerId(), err
}

// Start starts a created container.
func (d *Direct) Start(id string) error {
	_, err := d.n.CRI.StartContainer(context.Background(), &cri.StartContainerRequest{ContainerId: id})
	return err
}

// Run creates and starts a container.
func (d *Direct) Run(name string, answer Answer) (id string, err error) {
	if id, err = d.Create(name, answer); err == nil {
		err = d.Start(id)
	}
	return id, err
}

// State returns a container's state.
func (d *Direct) State(id string) (cri.ContainerState, error) {
	response, err := d.n.CRI.ContainerStatus(context.Background(), &cri.ContainerStatusRequest{ContainerId: id})
	return response.GetStatus().GetState(), err
}

// MustHave fails the test unless a running container has exactly the given GPUs.
func (d *Direct) MustHave(t testing.TB, id string, gpus ...int) {
	t.Helper()
	view, err := d.n.ViewContainer(id)
	if err == nil {
		err = d.n.Compare(view, gpus...)
	}
	if err != nil {
		t.Errorf("container %s: %v", id, err)
	}
}

// RemoveContainer ends and removes a container.
func (d *Direct) RemoveContainer(t testing.TB, id string) {
	t.Helper()
	if _, err := d.n.CRI.RemoveContainer(context.Background(), &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Errorf("remove container %s: %v", id, err)
	}
}

// Remove ends and removes the sandbox with its containers. Doing it again
// changes nothing.
func (d *Direct) Remove(t testing.TB) {
	t.Helper()
	if _, err := d.n.CRI.StopPodSandbox(context.Background(), &cri.StopPodSandboxRequest{PodSandboxId: d.ID}); err != nil {
		t.Errorf("stop the pod sandbox: %v", err)
	}
	if _, err := d.n.CRI.RemovePodSandbox(context.Background(), &cri.RemovePodSandboxRequest{PodSandboxId: d.ID}); err != nil {
		t.Errorf("remove the pod sandbox: %v", err)
	}
}

// Answer is the advertiser's answer for a container.
type Answer = *deviceplugin.ContainerAllocateResponse

// Replica returns the device ID of a replica.
func (g GPU) Replica(replica int) string {
	return allocation.ReplicaID(allocation.GPUKey(g.InstanceID()), replica)
}

// DevicePlugin connects to the advertiser's socket for a resource, now and whenever it
// is there again.
func (n *Node) DevicePlugin(t testing.TB, resource string) deviceplugin.DevicePluginClient {
	t.Helper()
	return deviceplugin.NewDevicePluginClient(Dial(t, filepath.Join(DevicePluginDir, "directx-"+filepath.Base(resource)+".sock")))
}

// Allocate allocates one replica of a GPU, as the kubelet does, once the advertiser
// serves.
func (n *Node) Allocate(t testing.TB, gpu GPU, replica int) (answer Answer) {
	t.Helper()
	plugin := n.DevicePlugin(t, gpu.Resource())
	Eventually(t, 10*time.Second, "the advertiser allocates", func() (err error) {
		answer, err = Allocate(plugin, gpu.Replica(replica))
		return err
	})
	return answer
}

// Allocate allocates one device.
func Allocate(plugin deviceplugin.DevicePluginClient, id string) (Answer, error) {
	response, err := plugin.Allocate(context.Background(), &deviceplugin.AllocateRequest{ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{
		DevicesIds: []string{id},
	}}})
	if err != nil {
		return nil, err
	}
	if answers := response.GetContainerResponses(); len(answers) == 1 {
		return answers[0], nil
	}
	return nil, fmt.Errorf("Allocate answered for %d containers, want 1", len(response.GetContainerResponses()))
}
