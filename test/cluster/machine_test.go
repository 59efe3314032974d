//go:build e2e && linux

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

const (
	nodeName = "node"

	containerdConfig = "/etc/containerd/config.toml"
	containerdSocket = "/run/containerd/containerd.sock"
	kubeletRoot      = "/var/lib/kubelet"
	binDir           = "/usr/local/bin"

	// startTimeout bounds the start of containerd.
	startTimeout = 90 * time.Second
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

	kubelet, containerd *bed.Process

	api *bed.APIServer
	cri cri.RuntimeServiceClient
}

// startMachine starts a cluster until the end of the test.
func startMachine(t *testing.T) *machine {
	t.Helper()
	parts, err := bed.FindParts()
	testutil.NoError(t, err)
	m := &machine{parts: parts, dir: filepath.Join(bed.RunDir(), "cluster")}
	m.cri = cri.NewRuntimeServiceClient(bed.Dial(t, containerdSocket))
	m.writeFiles(t)
	m.logs = filepath.Join(parts.Root, "out", "e2e-cluster", time.Now().Format("20060102-150405.000"))
	testutil.NoError(t, os.MkdirAll(m.logs, 0o755))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the logs are in %s", m.logs)
		}
	})

	m.containerd = m.start(t, "containerd", filepath.Join(binDir, "containerd"), "--log-level", "info")
	m.api = bed.StartAPIServer(t, parts, m.dir, m.logs)
	m.waitContainerd(t)
	t.Cleanup(func() { testutil.NoError(t, bed.StopPods(m.cri, nil)) })
	m.importBusybox(t)
	m.api.WaitAPI(t)
	m.start(t, "kube-controller-manager", parts.Stock(controllerManager),
		"--kubeconfig", m.api.Kubeconfig, "--leader-elect=false", "--bind-address", "127.0.0.1", "--cert-dir", m.file("controller-manager"))
	m.start(t, "kube-scheduler", parts.Stock(scheduler),
		"--kubeconfig", m.api.Kubeconfig, "--leader-elect=false", "--bind-address", "127.0.0.1", "--cert-dir", m.file("scheduler"))
	m.kubelet = m.start(t, "kubelet", parts.Stock("kubelet"),
		"--config", m.file("kubelet.yaml"), "--kubeconfig", m.api.Kubeconfig, "--hostname-override", nodeName, "--node-ip", bed.NodeAddress, "--v", "2")
	return m
}

// start runs a program until the end of the test.
func (m *machine) start(t *testing.T, name, program string, args ...string) *bed.Process {
	t.Helper()
	p := bed.NewProcess(name, filepath.Join(m.logs, name+".log"), func() *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "PATH="+binDir+":/usr/sbin:/usr/bin:/sbin:/bin")
		cmd.Dir = m.dir
		return cmd
	})
	p.StartForTest(t)
	return p
}

func (m *machine) waitContainerd(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if _, err := m.cri.Version(ctx, &cri.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatalf("containerd does not serve: %v\n%s", err, m.containerd.Tail(30))
	}
}

// containerdSettings is the node's containerd configuration. NRI is enabled, as the documentation of 1.7 says.
const containerdSettings = `# Maintained by the administrators.
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + busyboxImage + `"
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

[plugins."io.containerd.nri.v1.nri"]
  disable = false
`

const network = `{
  "cniVersion": "1.0.0", "name": "pods",
  "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`

// kubeletSettings is appended to [bed.KubeletSettings]. A pod has a changed ConfigMap at its next sync.
const kubeletSettings = `
containerRuntimeEndpoint: unix://` + containerdSocket + `
volumePluginDir: ` + kubeletRoot + `/volume-plugins
address: ` + bed.NodeAddress + `
readOnlyPort: 0
nodeStatusUpdateFrequency: 1s
syncFrequency: 2s
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
`

func (m *machine) file(name string) string { return filepath.Join(m.dir, name) }

// writeFiles writes the files that the cluster's components read.
func (m *machine) writeFiles(t testing.TB) {
	t.Helper()
	for path, content := range map[string]string{
		containerdConfig:                               fmt.Sprintf(containerdSettings, snapshotter()),
		"/etc/cni/net.d/pods.conflist":                 network,
		"/etc/containers/registries.conf.d/suite.conf": fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", registry),
		m.file("kubelet.yaml"):                         fmt.Sprintf(bed.KubeletSettings, bed.Cgroup()) + kubeletSettings,
	} {
		bed.WriteFile(t, path, content, 0o644)
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2"} {
		bed.WriteFile(t, filepath.Join(binDir, name), mustRead(t, m.parts.Stock(name)), 0o755)
	}
}

// snapshotter returns containerd's default, or one that needs no kernel support.
func snapshotter() string {
	if systems, _ := os.ReadFile("/proc/filesystems"); strings.Contains(string(systems), "\toverlay\n") {
		return "overlayfs"
	}
	return "native"
}

const (
	busyboxImage = "docker.io/library/busybox:1.36"
	// registry runs on this machine. repository is that of the product's image.
	registry   = "localhost:5000"
	repository = registry + "/directx-nri"
	platform   = "linux-" + runtime.GOARCH

	// older is the version in the documentation.
	older, newer = "v0.2.0", "v0.2.1"
)

// importBusybox gives the node an image with the machine's busybox, for sandboxes too.
func (m *machine) importBusybox(t testing.TB) {
	t.Helper()
	archive := filepath.Join(m.dir, "image.tar")
	testutil.NoError(t, bed.WriteImage(archive, busyboxImage, bed.ImageConfig{}))
	out, err := exec.Command(m.parts.Stock("ctr"), "--namespace", bed.PodNamespace, "images", "import", "--snapshotter", snapshotter(), archive).CombinedOutput()
	if err != nil {
		t.Fatalf("import image archive %s: %v\n%s", archive, err, out)
	}
}

// startRegistry starts the registry that nodes pull images of the product from.
func (m *machine) startRegistry(t *testing.T) {
	t.Helper()
	crane := m.run(t, "", "go tool -modfile=tools/release/go.mod -n crane")
	m.start(t, "registry", strings.TrimSpace(crane), "registry", "serve", "--address", registry)
}

// publish builds the image of a version and pushes it to the registry, as README says.
func (m *machine) publish(t testing.TB, version string) {
	t.Helper()
	m.follow(t, "README.md", "Install on a Windows node", "make images", older, version, "REGISTRY", registry)
}
