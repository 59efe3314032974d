//go:build e2e && windows

package bed

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/directx-nri/directx-nri/internal/testutil"
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
staticPodPath: '%s', podLogsDir: '%s', containerRuntimeEndpoint: 'npipe:////./pipe/%s',
address: 127.0.0.1, port: %s, healthzPort: 0, registerNode: false, resolvConf: "",
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}, authorization: {mode: AlwaysAllow},
imageGCHighThresholdPercent: 100, evictionHard: {memory.available: 1Mi},
fileCheckFrequency: 1s, syncFrequency: 1s, cgroupsPerQOS: false, enforceNodeAllocatable: [],
featureGates: {KubeletCrashLoopBackOffMax: true}, crashLoopBackOff: {maxContainerRestartPeriod: 1s}}
`

// CNI writes a configuration of the network plugin with which containerd's CI runs pods, and
// returns the part of containerd's configuration file that selects it.
func (m *Machine) CNI(t testing.TB) string {
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
	testutil.WriteFile(t, m.dir+`\cni\nat.conf`, fmt.Sprintf(
		`{"cniVersion": "0.2.0", "name": "nat", "type": "NAT", "ipam": {"subnet": "%s", "routes": [{"GW": "%s"}]}}`, subnet, gateway.IP), 0o600)
	return fmt.Sprintf("\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = '%s'\n  conf_dir = '%s'\n", m.programs, m.dir+`\cni`)
}

// Kubelet is the real kubelet.exe with the product's device plugin.
type Kubelet struct {
	node    *Node
	kubelet *Background
	url     string
	client  http.Client
}

// StartKubelet starts the node's kubelet and device plugin, until the test ends.
func (n *Node) StartKubelet(t testing.TB) *Kubelet {
	t.Helper()
	_, err := os.Stat(kubeletExe)
	if _, used := os.Stat(kubeletRoot); err == nil && used == nil {
		err = fmt.Errorf("this machine is a node: %s exists", kubeletRoot)
	}
	switch {
	case err != nil && os.Getenv("CI") == "true":
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	}
	testutil.NoError(t, n.Recorder.Close()) // The device plugin writes the records.
	t.Cleanup(func() {
		for id := range n.Tasks(t, CRINamespace) {
			_, _ = n.Ctr("--namespace", CRINamespace, "tasks", "rm", "--force", id)
		}
		_ = os.RemoveAll(kubeletRoot) // Containers that could not be removed may use it.
	})
	address := testutil.FreeAddress(t)
	_, port, _ := net.SplitHostPort(address) // It is well formed.
	n.File(t, "kubelet.yaml", fmt.Sprintf(kubeletConfig, n.Path("manifests"), n.Path("pods"), n.pipe, port))
	n.Background(t, n.Command(context.Background(), n.Executable("directx-advertiser.exe"), "--config", n.Path("config.yaml"),
		"--state-dir", n.StateDir, "--runtime-dir", n.Path("runtime"), "--shim-dir", n.Path(), "--cri-socket", n.Pipe(), "--log-level", "debug"))
	k := &Kubelet{node: n, url: "https://" + address}
	// The kubelet makes its own certificate.
	k.client = http.Client{Timeout: stepTimeout, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	k.Start(t)
	return k
}

// Start starts the kubelet, again if it runs, and waits until it has the device plugin's
// devices.
func (k *Kubelet) Start(t testing.TB) {
	t.Helper()
	if k.kubelet != nil {
		k.kubelet.Kill()
	}
	k.kubelet = k.node.Background(t, k.node.Command(context.Background(), kubeletExe, "--config", k.node.Path("kubelet.yaml"),
		"--hostname-override", "node", "--root-dir", kubeletRoot, "--cert-dir", kubeletRoot+`\pki`, "--v", "3"))
	Eventually(t, "the device plugin registers", func() error {
		if !strings.Contains(k.kubelet.Log(), `"State pushed for device plugin" resource="`+Display+`"`) {
			return errors.New("the kubelet does not have its devices")
		}
		return nil
	})
}

// Apply creates a static pod of one container that requests GPUs.
func (k *Kubelet) Apply(t testing.TB, pod string, gpus int) {
	t.Helper()
	type object = map[string]any
	container := object{"name": "main", "image": k.node.imageName(), "imagePullPolicy": "IfNotPresent", "command": k.node.Forever()}
	if gpus > 0 {
		container["resources"] = object{"limits": object{Display: gpus}}
	}
	testutil.WriteFile(t, k.node.Path("manifests", pod+".json"), string(JSON(t, object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": pod, "namespace": "default"},
		"spec": object{"terminationGracePeriodSeconds": 1, "containers": []object{container}},
	})), 0o600)
}

// Remove removes all static pods.
func (k *Kubelet) Remove(t testing.TB) {
	t.Helper()
	Eventually(t, "remove the pods", func() error { return os.RemoveAll(k.node.Path("manifests")) }) // The kubelet may be reading it.
}

// Await waits until the container of a static pod is as check requires, and logs and returns
// its status. An image may have to be pulled.
func (k *Kubelet) Await(t testing.TB, pod, what string, check func(corev1.ContainerStatus) bool) (status corev1.ContainerStatus) {
	t.Helper()
	within(t, 10*time.Minute, "pod "+pod+": "+what, func() error {
		var pods corev1.PodList
		text, err := answer(k.client.Get(k.url + "/pods"))
		if err == nil {
			err = json.Unmarshal(text, &pods)
		}
		for _, p := range pods.Items {
			if p.Name == pod+"-node" && len(p.Status.ContainerStatuses) == 1 {
				if status = p.Status.ContainerStatuses[0]; check(status) {
					return nil
				}
			}
		}
		return errors.Join(err, fmt.Errorf("its status is %s", JSON(t, status)))
	})
	t.Logf("pod %s: %s: %s", pod, what, JSON(t, status))
	return status
}

// AwaitRunning waits until the container of a static pod runs, and returns its ID.
func (k *Kubelet) AwaitRunning(t testing.TB, pod string) (id string) {
	t.Helper()
	status := k.Await(t, pod, "it runs", func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
	return strings.TrimPrefix(status.ContainerID, "containerd://")
}

// Inside runs a command line in the container of a static pod and returns its output.
func (k *Kubelet) Inside(t testing.TB, pod, command string) (out string) {
	t.Helper()
	Eventually(t, "run "+command+" in "+pod, func() error { // containerd may be restarting.
		text, err := answer(k.client.Post(k.url+"/run/default/"+pod+"-node/main?cmd="+url.QueryEscape(command), "", nil))
		out = string(text)
		return err
	})
	return out
}

// answer returns the answer to a request.
func answer(response *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("the kubelet answers %s: %s", response.Status, text))
	}
	return text, err
}
