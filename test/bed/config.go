//go:build e2e && linux

package bed

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// containerdConfig is containerd's configuration: its root, state, sockets and
// sandbox image go into it.
const containerdConfig = `version = 2
root = %[1]q
state = %[2]q
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
  address = %[3]q

[debug]
  level = "info"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[4]q
  stream_server_port = "0"
  # Some kernels refuse a negative oom_score_adj below another container.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = %[5]q

[plugins."io.containerd.nri.v1.nri"]
  disable = %[7]t
  disable_connections = false
  socket_path = %[6]q
  plugin_path = %[5]q
  plugin_config_path = %[5]q
`

// ContainerdConfig is containerd's configuration file.
func (n *Node) ContainerdConfig() string { return filepath.Join(n.Dir, "containerd.toml") }

// ContainerdState is containerd's state directory.
func (n *Node) ContainerdState() string { return filepath.Join(n.Dir, "cd") }

func (n *Node) writeContainerdConfig(t testing.TB) string {
	t.Helper()
	path := func(name string) string { return filepath.Join(n.Dir, name) }
	return WriteFile(t, n.ContainerdConfig(), fmt.Sprintf(containerdConfig,
		path("root"), n.ContainerdState(), n.Address(), Image, path("empty"), n.NRISocket, n.NRIOff), 0o644)
}

// EditContainerd replaces a text in containerd's configuration and restarts containerd.
func (n *Node) EditContainerd(t testing.TB, old, text string) {
	t.Helper()
	config := string(ReadFile(t, n.ContainerdConfig()))
	if !strings.Contains(config, old) {
		t.Fatalf("containerd's configuration has no %q", old)
	}
	WriteFile(t, n.ContainerdConfig(), strings.Replace(config, old, text, 1), 0o644)
	n.Restart(t, n.Containerd)
}

// ShimFile is where the runtime shim is installed, on containerd's PATH.
func (n *Node) ShimFile() string { return filepath.Join(n.Dir, "shim", shimfile.FileName()) }

// ConfigFile is the product's configuration file, which the advertiser compiles.
func (n *Node) ConfigFile() string { return filepath.Join(n.Dir, "config.yaml") }

// WriteConfig replaces the product's configuration file, in one step: with what
// the node itself needs, and more YAML, whose keys are others.
func (n *Node) WriteConfig(t testing.TB, more string) {
	t.Helper()
	if !n.Discover {
		more = fmt.Sprintf("inventory: %s\n%s", n.inventory, more)
	}
	WriteFile(t, n.ConfigFile(), fmt.Sprintf("apiVersion: %s\nkind: %s\n%s\n", config.APIVersion, config.Kind, more), 0o644)
}

// KubeletSettings are those of a kubelet on a machine that is not its own, with
// the control group of all containers to go into it. It is as quick as a kubelet
// can be: a crashed container is started again after a second, and
// nothing on the machine makes it evict a pod. What stays is the 10 to 15
// seconds after which it tries a container again whose creation failed.
const KubeletSettings = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: %s
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
failCgroupV1: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
oomScoreAdj: 0
resolvConf: ""
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.available: 0%%, imagefs.inodesFree: 0%%}
featureGates: {KubeletCrashLoopBackOffMax: true}
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
healthzPort: 0
`

// kubeletConfig is what the node's kubelet has beside that.
const kubeletConfig = `
staticPodPath: %[1]s
fileCheckFrequency: 1s
containerRuntimeEndpoint: unix://%[2]s
podLogsDir: %[3]s
volumePluginDir: %[4]s
address: 127.0.0.1
port: %[5]s
readOnlyPort: %[6]s
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
registerNode: %[7]t
nodeStatusUpdateFrequency: 1s
`

func (n *Node) writeKubeletConfig(t testing.TB) string {
	t.Helper()
	n.readOnly = testutil.FreeAddress(t)
	_, port, _ := net.SplitHostPort(testutil.FreeAddress(t)) // It is well formed.
	_, readOnlyPort, _ := net.SplitHostPort(n.readOnly)
	path := func(name string) string { return filepath.Join(n.Dir, name) }
	return WriteFile(t, path("kubelet.yaml"), fmt.Sprintf(KubeletSettings, n.cgroup)+fmt.Sprintf(kubeletConfig,
		n.manifests, n.Address(), path("pods"), path("empty"), port, readOnlyPort, n.APIPods), 0o644)
}

// MountDisk puts an ext4 file system of the given size in bytes over dir, in the run's mount
// namespace alone, until the test ends.
func MountDisk(t testing.TB, dir string, size int) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	script := `truncate -s "$1" "$2" && mkfs.ext4 -q -F -b 1024 -i 4096 -m 0 -O ^has_journal "$2" && mount -o loop "$2" "$3" && chmod 700 "$3" && rmdir "$3/lost+found"`
	if out, err := exec.Command("sh", "-c", script, "sh", fmt.Sprint(size), image, dir).CombinedOutput(); err != nil {
		t.Fatalf("mount a small file system over %s: %v\n%s", dir, err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // The namespace's end does it too.
}

// Fill writes a file until its file system is full.
func Fill(path string) error {
	_ = exec.Command("dd", "if=/dev/zero", "of="+path, "bs=512").Run() // It fails when no byte is left.
	_, err := os.Stat(path)
	return err
}
