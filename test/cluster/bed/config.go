//go:build e2e && linux

package bed

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	node "directx-nri/test/bed"
)

const (
	etcdAddress = "127.0.0.1:2379"
	apiURL      = "https://127.0.0.1:6443"
	// token is the one user's, who may do everything. The network is the run's.
	token = "of-the-suite"
)

// containerdConfig is the node's containerd configuration, with somebody's
// comments in it and NRI off, as it is in containerd 1.7 by default. The
// snapshotter goes into it.
const containerdConfig = `# The node's own. Ask the administrators before you change it.
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  # Some kernels refuse a negative oom_score_adj below another container.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + plugins + `" # where Debian has them
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %q
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2" # the usual one
`

// network is the list of CNI plugins of pods: a bridge of the node's own.
const network = `{
  "cniVersion": "1.0.0", "name": "pods",
  "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`

// kubeletConfig is what the kubelet has beside [node.KubeletSettings].
const kubeletConfig = `
containerRuntimeEndpoint: unix://` + containerdSocket + `
volumePluginDir: ` + kubeletRoot + `/volume-plugins
address: ` + nodeAddress + `
readOnlyPort: 0
nodeStatusUpdateFrequency: 1s
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
`

const kubeconfig = `apiVersion: v1
kind: Config
current-context: suite
contexts: [{name: suite, context: {cluster: suite, user: suite}}]
clusters: [{name: suite, cluster: {server: "` + apiURL + `", insecure-skip-tls-verify: true}}]
users: [{name: suite, user: {token: ` + token + `}}]
`

// writeFiles writes what the parts read.
func (c *Cluster) writeFiles(t testing.TB) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		ContainerdConfig:               fmt.Sprintf(containerdConfig, snapshotter(t)),
		"/etc/cni/net.d/pods.conflist": network,
		c.file("kubelet.yaml"):         fmt.Sprintf(node.KubeletSettings, node.Cgroup()) + kubeletConfig,
		c.file("kubeconfig"):           kubeconfig,
		c.file("tokens.csv"):           token + ",suite,suite,system:masters\n",
		c.file("accounts.key"):         string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	} {
		WriteFile(t, path, content)
	}
	// As containerd's own archive has them.
	for _, name := range []string{"containerd", "containerd-shim-runc-v2"} {
		program, err := os.ReadFile(c.Parts.Stock(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, name), program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// WriteFile writes a file and makes its folder.
func WriteFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (c *Cluster) file(name string) string { return filepath.Join(c.Dir, name) }

// snapshotter is containerd's usual one, or one that needs nothing of the kernel.
func snapshotter(t testing.TB) string {
	t.Helper()
	systems, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(systems), "\toverlay\n") {
		return "overlayfs"
	}
	return "native"
}

// supervise is what an init system is to containerd.
const supervise = `while :; do
	containerd --log-level info
	echo "supervisor: containerd ended with status $?"
	sleep 0.2
done`

func (c *Cluster) declareProcesses(t testing.TB) {
	t.Helper()
	logs := filepath.Join(c.Parts.Root, "out", "e2e-cluster", time.Now().Format("20060102-150405.000"))
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatalf("make the folder for logs: %v", err)
	}
	c.logs = logs
	process := func(part string, args ...string) *node.Process {
		name := filepath.Base(part)
		return node.NewProcess(name, filepath.Join(logs, name+".log"), func() *exec.Cmd {
			cmd := exec.Command(c.Parts.Stock(part), args...)
			cmd.Dir = c.Dir
			return cmd
		})
	}
	c.Etcd = process(etcd,
		"--data-dir", c.file("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", "http://"+etcdAddress, "--advertise-client-urls", "http://"+etcdAddress,
		"--listen-peer-urls", "http://127.0.0.1:0")
	c.APIServer = process(apiServer,
		"--etcd-servers", "http://"+etcdAddress, "--bind-address", "127.0.0.1", "--advertise-address", nodeAddress,
		"--cert-dir", c.file("api-server"), "--token-auth-file", c.file("tokens.csv"), "--authorization-mode", "AlwaysAllow",
		"--service-account-issuer", "https://suite", "--service-account-key-file", c.file("accounts.key"),
		"--service-account-signing-key-file", c.file("accounts.key"), "--service-cluster-ip-range", "10.96.0.0/24",
		"--endpoint-reconciler-type", "none", "--disable-admission-plugins", "ServiceAccount",
		"--kubelet-preferred-address-types", "InternalIP",
		// Windows HostProcess containers are privileged ones.
		"--allow-privileged")
	c.ControllerManager = process(controllerManager,
		"--kubeconfig", c.file("kubeconfig"), "--leader-elect=false", "--bind-address", "127.0.0.1", "--cert-dir", c.file("controller-manager"))
	c.Scheduler = process(scheduler,
		"--kubeconfig", c.file("kubeconfig"), "--leader-elect=false", "--bind-address", "127.0.0.1", "--cert-dir", c.file("scheduler"))
	c.Kubelet = process("kubelet",
		"--config", c.file("kubelet.yaml"), "--kubeconfig", c.file("kubeconfig"), "--hostname-override", NodeName, "--node-ip", nodeAddress, "--v", "2")
	c.Containerd = node.NewProcess("containerd", filepath.Join(logs, "containerd.log"), func() *exec.Cmd {
		cmd := exec.Command("/bin/sh", "-c", supervise)
		cmd.Env = append(os.Environ(), "PATH="+bin+":/usr/sbin:/usr/bin:/sbin:/bin")
		return cmd
	})
}
