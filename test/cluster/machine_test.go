//go:build e2e && linux

package cluster

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"directx-nri/test/bed"
)

const (
	nodeName = "node"
	// nodeAddress is in a range for documentation. The kubelet refuses loopback addresses.
	nodeAddress = "192.0.2.10"

	containerdConfig = "/etc/containerd/config.toml"
	containerdSocket = "/run/containerd/containerd.sock"
	kubeletRoot      = "/var/lib/kubelet"
	binDir           = "/usr/local/bin"

	etcdAddress = "127.0.0.1:2379"
	apiURL      = "https://127.0.0.1:6443"
	// token identifies the only user, an administrator.
	token = "of-the-suite"

	// startTimeout bounds the start of a component, callTimeout one request to it.
	startTimeout = 90 * time.Second
	callTimeout  = 10 * time.Second
)

// Programs that test/parts/build.sh builds, relative to its directory bin.
const (
	etcd              = "../cluster/etcd"
	apiServer         = "../cluster/kube-apiserver"
	controllerManager = "../cluster/kube-controller-manager"
	scheduler         = "../cluster/kube-scheduler"
	kubectl           = "../cluster/kubectl"
	helm              = "helm"
	// cniPlugins is the directory of Debian's package containernetworking-plugins.
	cniPlugins = "/usr/lib/cni"
)

// machine is a running cluster.
type machine struct {
	parts bed.Parts
	dir   string // a directory of the run, outside of the node's
	logs  string

	etcd, apiServer, controllerManager, scheduler, kubelet *bed.Process
	// containerd is the supervisor of containerd.
	containerd *bed.Process

	client *http.Client
	cri    cri.RuntimeServiceClient
}

// startMachine starts a cluster until the end of the test and waits until its node is
// ready.
func startMachine(t *testing.T) *machine {
	t.Helper()
	parts, err := bed.FindParts()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{parts: parts, dir: filepath.Join(bed.RunDir(), "cluster"), client: newClient()}
	m.cri = cri.NewRuntimeServiceClient(bed.Dial(t, containerdSocket))
	m.writeFiles(t)
	m.declareProcesses(t)
	t.Cleanup(func() {
		for _, p := range []*bed.Process{m.kubelet, m.scheduler, m.controllerManager, m.apiServer, m.etcd, m.containerd} {
			if p.Running() {
				p.Kill(t)
			}
		}
		if t.Failed() {
			t.Logf("the logs are in %s", m.logs)
		}
	})

	m.containerd.Start(t)
	m.etcd.Start(t)
	m.wait(t, "etcd listens", func() error {
		conn, err := net.Dial("tcp", etcdAddress)
		if err != nil {
			return err
		}
		return conn.Close()
	}, m.etcd)
	m.apiServer.Start(t)
	m.waitContainerd(t)
	m.importBusybox(t)
	m.wait(t, "the API server is ready", func() error { return m.get("/readyz", nil) }, m.apiServer)
	daemons := []*bed.Process{m.controllerManager, m.scheduler, m.kubelet}
	for _, p := range daemons {
		p.Start(t)
	}
	m.wait(t, "the node is ready", m.ready, daemons...)
	return m
}

// wait waits until check returns nil. The processes must keep running.
func (m *machine) wait(t testing.TB, what string, check func() error, processes ...*bed.Process) {
	t.Helper()
	bed.Eventually(t, startTimeout, what, func() error {
		for _, p := range processes {
			if !p.Running() {
				t.Fatalf("%s ended\n%s", p.Name, p.Tail(30))
			}
		}
		return check()
	})
}

func (m *machine) waitContainerd(t testing.TB) {
	t.Helper()
	m.wait(t, "containerd serves", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
		defer cancel()
		out, err := exec.CommandContext(ctx, m.parts.Stock("ctr"), "version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}, m.containerd)
}

func (m *machine) ready() error {
	var n corev1.Node
	if err := m.get("/api/v1/nodes/"+nodeName, &n); err != nil {
		return err
	}
	if len(n.Spec.Taints) > 0 {
		return fmt.Errorf("the node has the taint %v", n.Spec.Taints[0])
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("the node's conditions are %v", n.Status.Conditions)
}

// containerdSettings is the node's containerd configuration before the installation. It
// has an administrator's comments, and NRI is disabled, which is containerd 1.7's default.
const containerdSettings = `# Maintained by the administrators.
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + pauseImage + `"
  # Some kernels refuse a negative oom_score_adj in a container.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + cniPlugins + `" # Debian's directory
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %q
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2" # the default
`

const network = `{
  "cniVersion": "1.0.0", "name": "pods",
  "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`

// kubeletSettings is appended to [bed.KubeletSettings].
const kubeletSettings = `
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

func (m *machine) file(name string) string { return filepath.Join(m.dir, name) }

// writeFiles writes the files that the cluster's components read.
func (m *machine) writeFiles(t testing.TB) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		containerdConfig:               fmt.Sprintf(containerdSettings, snapshotter(t)),
		"/etc/cni/net.d/pods.conflist": network,
		m.file("kubelet.yaml"):         fmt.Sprintf(bed.KubeletSettings, bed.Cgroup()) + kubeletSettings,
		m.file("kubeconfig"):           kubeconfig,
		m.file("tokens.csv"):           token + ",suite,suite,system:masters\n",
		m.file("accounts.key"):         string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	} {
		writeFile(t, path, content, 0o644)
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2"} {
		writeFile(t, filepath.Join(binDir, name), mustRead(t, m.parts.Stock(name)), 0o755)
	}
}

func writeFile(t testing.TB, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// snapshotter returns containerd's default, or one that needs no kernel support.
func snapshotter(t testing.TB) string {
	t.Helper()
	if strings.Contains(mustRead(t, "/proc/filesystems"), "\toverlay\n") {
		return "overlayfs"
	}
	return "native"
}

// supervise restarts containerd when it ends, as an init system does.
const supervise = `while :; do
	containerd --log-level info
	echo "supervisor: containerd ended with status $?"
	sleep 0.2
done`

func (m *machine) declareProcesses(t testing.TB) {
	t.Helper()
	m.logs = filepath.Join(m.parts.Root, "out", "e2e-cluster", time.Now().Format("20060102-150405.000"))
	if err := os.MkdirAll(m.logs, 0o755); err != nil {
		t.Fatal(err)
	}
	process := func(part string, args ...string) *bed.Process {
		name := filepath.Base(part)
		return bed.NewProcess(name, filepath.Join(m.logs, name+".log"), func() *exec.Cmd {
			cmd := exec.Command(m.parts.Stock(part), args...)
			cmd.Dir = m.dir
			return cmd
		})
	}
	m.etcd = process(etcd,
		"--data-dir", m.file("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", "http://"+etcdAddress, "--advertise-client-urls", "http://"+etcdAddress,
		"--listen-peer-urls", "http://127.0.0.1:0")
	m.apiServer = process(apiServer,
		"--etcd-servers", "http://"+etcdAddress, "--bind-address", "127.0.0.1", "--advertise-address", nodeAddress,
		"--cert-dir", m.file("api-server"), "--token-auth-file", m.file("tokens.csv"), "--authorization-mode", "AlwaysAllow",
		"--service-account-issuer", "https://suite", "--service-account-key-file", m.file("accounts.key"),
		"--service-account-signing-key-file", m.file("accounts.key"), "--service-cluster-ip-range", "10.96.0.0/24",
		"--endpoint-reconciler-type", "none", "--disable-admission-plugins", "ServiceAccount",
		"--kubelet-preferred-address-types", "InternalIP",
		// HostProcess containers are privileged.
		"--allow-privileged")
	m.controllerManager = process(controllerManager,
		"--kubeconfig", m.file("kubeconfig"), "--leader-elect=false", "--bind-address", "127.0.0.1", "--cert-dir", m.file("controller-manager"))
	m.scheduler = process(scheduler,
		"--kubeconfig", m.file("kubeconfig"), "--leader-elect=false", "--bind-address", "127.0.0.1", "--cert-dir", m.file("scheduler"))
	m.kubelet = process("kubelet",
		"--config", m.file("kubelet.yaml"), "--kubeconfig", m.file("kubeconfig"), "--hostname-override", nodeName, "--node-ip", nodeAddress, "--v", "2")
	m.containerd = bed.NewProcess("containerd", filepath.Join(m.logs, "containerd.log"), func() *exec.Cmd {
		cmd := exec.Command("/bin/sh", "-c", supervise)
		cmd.Env = append(os.Environ(), "PATH="+binDir+":/usr/sbin:/usr/bin:/sbin:/bin")
		return cmd
	})
}
