//go:build e2e && linux

package dxg

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// nestedConfig is containerd's configuration. Like that of kind's node image, it has version 2
// and leaves NRI to containerd's default. The rest is what this machine requires.
const nestedConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + bed.Image + `"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
`

// runNested makes the node's mounts shared, as the entry point of kind's node image does, and
// starts the programs in place of systemd. $0 is containerd's configuration.
const runNested = `busybox mount --make-rshared / && busybox ln -s /run /var/run && busybox mkdir -p ` + bed.DevicePluginDir + ` || exit 1
export PATH=/containerd:/usr/local/bin:$PATH
containerd --config "$0" &
directx-nri &
busybox unshare --mount sh -c '` + onDouble + `' /double directx-advertiser &
wait`

// TestNested runs containerd in a container of Docker that has the flags of kind's nodes:
// --privileged gives it /dev/dxg, and extraMounts the user-mode drivers. The test is the kubelet.
func TestNested(t *testing.T) {
	d := start(t, adapters(laptop...))
	n := bed.Start(t, bed.Options{NoKubelet: true, Discover: true, NRIOff: true, Containerd2: true})
	docker := n.Docker(t)
	run := func(args ...string) string {
		t.Helper()
		out, err := docker(args...).CombinedOutput()
		if err != nil {
			t.Fatalf("docker %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	image := filepath.Join(n.Dir, "image.tar")
	run("load", "--input", image)
	config := bed.WriteFile(t, filepath.Join(n.Dir, "nested.toml"), nestedConfig, 0o644)
	run("create", "--name", "node", "--network", "none", "--privileged", "--cgroupns", "private",
		"--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined", "--tmpfs", "/run", "--volume", "/var",
		"--volume", wsl+":"+wsl+":ro", // extraMounts
		"--volume", "/lib:/lib:ro", "--volume", "/lib64:/lib64:ro", // runc's
		"--volume", n.Stock("../containerd2")+":/containerd:ro", "--volume", d.File+":/double", "--volume", n.Dir+":"+n.Dir,
		bed.Image, "/bin/sh", "-c", runNested, config)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(run("logs", "--tail", "50", "node"))
		}
		run("rm", "--force", "--volumes", "node")
	})
	run("cp", filepath.Dir(n.Product("directx-nri"))+"/.", "node:/usr/local/bin/")
	run("start", "node")
	n.Root = "/proc/" + run("inspect", "--format", "{{.State.Pid}}", "node") + "/root"
	n.CRI = cri.NewRuntimeServiceClient(bed.Dial(t, n.Root+"/run/containerd/containerd.sock"))
	n.WaitContainerd(t)
	run("exec", "node", "/containerd/ctr", "--namespace", bed.PodNamespace, "images", "import", "--local", "--snapshotter", "native", image)

	plugin := deviceplugin.NewDevicePluginClient(bed.Dial(t, n.Root+bed.DevicePluginDir+"/directx-display.sock"))
	var answer bed.Answer
	bed.Eventually(t, time.Minute, "the advertiser allocates the GPU of NVIDIA", func() (err error) {
		answer, err = bed.Allocate(plugin, allocation.ReplicaID(nvidia.key(), 0))
		return err
	})
	pod := n.RunSandbox(t, "nested")
	var id string
	bed.Eventually(t, time.Minute, "a container starts", func() (err error) {
		id, err = pod.Run("main", answer)
		return err
	})
	view, err := n.ViewContainer(id)
	testutil.NoError(t, err)
	if want := driverFiles(nvidia); !slices.Equal(view.GPUs, []int{0}) || !maps.Equal(view.Files, want) || len(view.Writable) > 0 {
		t.Errorf("the container has devices %v and files %v, want %v; writable: %v",
			view.GPUs, slices.Sorted(maps.Keys(view.Files)), slices.Sorted(maps.Keys(want)), view.Writable)
	}

	run("exec", "node", "busybox", "killall", "directx-nri")
	if id, err := pod.Run("refused", answer); err == nil || !strings.Contains(err.Error(), "directx-nri") {
		t.Errorf("container %s that the plugin did not adjust: %v", id, err)
	}
}
