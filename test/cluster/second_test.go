//go:build e2e && linux

package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

const (
	secondNode    = "second"
	secondAddress = "192.0.2.11"
)

// runSecond runs containerd with directories of its own, below $0, and without a GPU.
const runSecond = `set -e
mount --make-rshared /
for place in /etc/containerd /etc/cni/net.d /run /var/lib /var/log /opt/containerd /opt/nri ` + wsl + `; do
	mkdir -p "$0$place"
	mount --bind "$0$place" "$place"
done
mkdir "$0/dev"
mount -t tmpfs -o mode=755 dev "$0/dev"
cp -ax /dev/. "$0/dev"
rm -f "$0/dev/dxg"
mount --rbind /dev/pts "$0/dev/pts"
mount --rbind "$0/dev" /dev
exec containerd`

// testSecondNode adds a node without a GPU to the cluster, which the chart leaves as it is.
// The taint keeps other pods away.
func (s *suite) testSecondNode(t *testing.T) {
	dir, config := s.file(secondNode), fmt.Sprintf(containerdSettings, snapshotter(t))
	for path, content := range map[string]string{
		dir + containerdConfig:               config,
		dir + "/etc/cni/net.d/pods.conflist": strings.NewReplacer("cni0", "cni1", "10.88.", "10.89.").Replace(network),
		s.file("second.yaml"):                strings.ReplaceAll(fmt.Sprintf(bed.KubeletSettings, bed.Cgroup())+kubeletSettings, bed.NodeAddress, secondAddress),
	} {
		bed.WriteFile(t, path, content, 0o644)
	}
	t.Cleanup(func() {
		s.kubectl(t, "delete", "node", secondNode)
		s.kubectl(t, "delete", "pods", "--all-namespaces", "--field-selector", "spec.nodeName="+secondNode, "--force")
	})
	containerd := s.start(t, "second-containerd", "unshare", "--mount", "--propagation", "slave", "/bin/sh", "-c", runSecond, dir)
	runtime := cri.NewRuntimeServiceClient(bed.Dial(t, dir+containerdSocket))
	bed.Eventually(t, startTimeout, "the second containerd serves", func() error {
		_, err := runtime.Version(t.Context(), &cri.VersionRequest{})
		return err
	})
	s.importImage(t, s.file("image.tar"), "--address", dir+containerdSocket)
	t.Cleanup(func() { testutil.NoError(t, bed.StopPods(runtime, nil)) })
	s.start(t, "second-kubelet", "nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", containerd.PID()), s.parts.Stock("kubelet"),
		"--config", s.file("second.yaml"), "--kubeconfig", s.api.Kubeconfig, "--hostname-override", secondNode, "--node-ip", secondAddress,
		"--register-with-taints", "test=second:NoSchedule", "--v", "2")

	bed.Eventually(t, timeout, "the DaemonSet's pod runs on the second node", func() error {
		pods, err := s.pods(namespace)
		for _, pod := range pods {
			if pod.Spec.NodeName == secondNode {
				return pod.Running()
			}
		}
		return errors.Join(err, errors.New("there is none"))
	})
	bed.Never(t, 5*time.Second, "the second node changes", func() error {
		var n corev1.Node
		err := s.api.Get("/api/v1/nodes/"+secondNode, &n)
		if quantity := n.Status.Allocatable[display]; !quantity.IsZero() {
			err = fmt.Errorf("allocatable %s is %s", display, quantity.String())
		}
		if now := mustRead(t, dir+containerdConfig); now != config {
			err = fmt.Errorf("containerd's configuration is\n%s", now)
		}
		if !containerd.Running() {
			err = errors.New("containerd has ended")
		}
		return err
	})
}
