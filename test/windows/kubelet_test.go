//go:build e2e && windows && !wine

package windows

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

const (
	// kubeletExe is where the kubelet usually is on Windows.
	kubeletExe = `C:\k\kubelet.exe`
	// kubeletRoot is the kubelet's directory. That of device plugins below it is fixed.
	kubeletRoot = `C:\var\lib\kubelet`
)

// kubeletConfig is that of a kubelet without an API server, which is as quick as it can be.
// It polls the static pods, because it does not watch files on Windows.
const kubeletConfig = `---
{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration,
staticPodPath: '%s', podLogsDir: '%s', containerRuntimeEndpoint: 'npipe:%s',
address: 127.0.0.1, port: %s, readOnlyPort: %s, healthzPort: 0, registerNode: false, resolvConf: "",
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}, authorization: {mode: AlwaysAllow},
imageGCHighThresholdPercent: 100, evictionHard: {memory.available: 1Mi},
fileCheckFrequency: 1s, cgroupsPerQOS: false, enforceNodeAllocatable: [],
featureGates: {KubeletCrashLoopBackOffMax: true}, crashLoopBackOff: {maxContainerRestartPeriod: 1s}}
`

// TestKubelet runs static pods with the real kubelet.exe, which needs Unix sockets: Wine has
// none. The GPUs are those of an inventory, and the containers get the class of all GPUs, which
// HCS accepts on a machine without one. The advertiser puts the shim in its place.
func TestKubelet(t *testing.T) {
	t.Parallel()
	_, err := os.Stat(kubeletExe)
	if _, used := os.Stat(kubeletRoot); err == nil && used == nil {
		err = fmt.Errorf("this machine is a node: %s exists", kubeletRoot)
	}
	if err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	testutil.NoError(t, err)
	gpus := machine.NewGPUs("kubelet")
	for i := range gpus { // No driver has these files.
		gpus[i].System32 = bed.Files(fmt.Sprintf("directx-nri-test%d.dll", i))
		gpus[i].SysWOW64 = gpus[i].System32
	}
	n := start(t, bed.Options{Name: "kubelet", GPUs: gpus, Settings: "assignmentMode: class-guid\ndriverFiles: auto\n", Bare: true})
	testutil.NoError(t, n.Recorder.Close()) // The device plugin writes the records.
	t.Cleanup(func() { _ = os.RemoveAll(kubeletRoot) })
	advertiser := n.Daemon(t, "advertiser", n.Executable("directx-advertiser.exe"), "--config", n.Path("config.yaml"),
		"--state-dir", n.StateDir, "--runtime-dir", n.Path("runtime"), "--shim-dir", n.Path(), "--cri-socket", n.Pipe(), "--log-level", "debug")
	t.Cleanup(func() { bed.Kill(advertiser) })
	_, port, _ := net.SplitHostPort(testutil.FreeAddress(t)) // They are well formed.
	address := testutil.FreeAddress(t)
	_, readOnlyPort, _ := net.SplitHostPort(address)
	n.File(t, "kubelet.yaml", fmt.Sprintf(kubeletConfig, n.Path("manifests"), n.Path("pods"), strings.ReplaceAll(n.Pipe(), `\`, "/"), port, readOnlyPort))
	k := &kubelet{node: n, pods: "http://" + address + "/pods"}
	k.start(t)
	t.Cleanup(func() { bed.Kill(k.process) })

	k.apply(t, "gpu", map[string]int{bed.Display: 1})
	k.apply(t, "none", nil)
	id, none := k.awaitRunning(t, "gpu"), k.awaitRunning(t, "none")
	n.MustHaveClass(t, id, n.Document(t, id).MappedDirectories...)
	out, err := n.Ctr("--namespace", bed.CRINamespace, "tasks", "exec", "--exec-id", "dir", id, "cmd", "/c", `dir /b C:\Windows\System32\HostDriverStore`)
	if err != nil || !strings.Contains(out, "FileRepository") {
		t.Errorf("the container has no drivers: %v: %s", err, out)
	}
	if _, err := os.Stat(n.StateDir + `\bin\dxctl.exe`); err != nil {
		t.Errorf("pods cannot run dxctl: %v", err)
	}
	if devices := n.Document(t, none).AssignedDevices; len(devices) != 0 {
		t.Errorf("the container without a request has devices %+v", devices)
	}
	unchanged := func() {
		t.Helper()
		if again := k.awaitRunning(t, "gpu"); again != id {
			t.Errorf("the container is %s after a restart, want %s", again, id)
		}
		n.MustRun(t, bed.CRINamespace, id, none)
	}
	bed.Kill(k.process)
	k.start(t)
	unchanged()
	n.Kill()
	n.Start(t)
	unchanged()
	bed.Eventually(t, "remove the pods", func() error { return os.RemoveAll(n.Path("manifests")) }) // The kubelet may be reading it.
	n.MustLeaveNothing(t, id)
	n.MustLeaveNothing(t, none)
}

// kubelet is the real kubelet.exe.
type kubelet struct {
	node    node
	process *exec.Cmd
	pods    string // the URL of its pods
}

// start starts the kubelet and waits until it has the device plugin's devices.
func (k *kubelet) start(t *testing.T) {
	t.Helper()
	log := k.node.Path("kubelet.log")
	before := len(bed.ReadFile(t, log))
	k.process = k.node.Daemon(t, "kubelet", kubeletExe, "--config", k.node.Path("kubelet.yaml"),
		"--hostname-override", "node", "--root-dir", kubeletRoot, "--cert-dir", kubeletRoot+`\pki`, "--v", "3")
	bed.Eventually(t, "the device plugin registers", func() error {
		if !strings.Contains(string(bed.ReadFile(t, log)[before:]), `"State pushed for device plugin" resource="`+bed.Display+`"`) {
			return errors.New("the kubelet does not have its devices")
		}
		return nil
	})
}

// apply creates a static pod of one container.
func (k *kubelet) apply(t *testing.T, pod string, limits map[string]int) {
	t.Helper()
	type object = map[string]any
	container := object{
		"name": "main", "image": k.node.ImageName(), "imagePullPolicy": "IfNotPresent", "command": k.node.Forever(), "resources": object{"limits": limits},
	}
	testutil.WriteFile(t, k.node.Path("manifests", pod+".json"), string(bed.JSON(t, object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": pod, "namespace": "default"},
		"spec": object{"terminationGracePeriodSeconds": 1, "containers": []object{container}},
	})), 0o600)
}

// awaitRunning waits until the container of a static pod runs, and returns its ID.
func (k *kubelet) awaitRunning(t *testing.T, pod string) (id string) {
	t.Helper()
	bed.Eventually(t, "pod "+pod+" runs", func() error {
		response, err := http.Get(k.pods)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		var pods corev1.PodList
		if err := json.NewDecoder(response.Body).Decode(&pods); err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Name == pod+"-node" && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil {
				id = strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
				return nil
			}
		}
		return fmt.Errorf("the pods are %s", bed.JSON(t, pods))
	})
	return id
}
