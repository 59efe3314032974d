//go:build e2e && linux

package cluster

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	node "directx-nri/test/bed"
	"directx-nri/test/cluster/bed"
)

// more is a configuration that shares GPUs among six, and has a resource of its
// own for one more model.
const more = `config:
  replicas: 6
  resources:
    - {name: example.com/npu, match: {description: Simulated NPU}}
    - {name: example.com/t4, match: {description: Simulated T4}}
    - {name: directx.microsoft.com/display, match: {kind: display}}
`

var (
	offeredMore   = map[string]int{display: 12, compute: 0, t4: 6, "example.com/npu": 6}
	offeredMended = map[string]int{display: 10, compute: 0, t4: 5, "example.com/npu": 5}
)

// testConfigChange leaves the node with that configuration.
func (s *suite) testConfigChange(t *testing.T) {
	ours := s.ourPod(t, daemonSet)
	s.helmUpgrade(t, "--reuse-values", "--values", s.values(t, more))
	s.waitOffered(t, offeredMore)
	s.mustGoOn(t)
	s.mustBeSame(t, ours)
	s.mustGiveGPUs(t, display, "example.com/npu", t4)
}

// mustBeSame fails the test unless the DaemonSet's pod is the one that it was, and
// none of its containers was started again.
func (s *suite) mustBeSame(t *testing.T, ours corev1.Pod) {
	t.Helper()
	if now := s.ourPod(t, daemonSet); now.UID != ours.UID || restarts(now.Status) != restarts(ours.Status) {
		t.Errorf("the DaemonSet's pod was %s with %d restarts and is %s with %d", ours.Name, restarts(ours.Status), now.Name, restarts(now.Status))
	}
}

// mustGiveGPUs fails the test unless a new pod gets its device, for each resource.
func (s *suite) mustGiveGPUs(t *testing.T, resources ...string) {
	t.Helper()
	for _, resource := range resources {
		name := "new-" + resource[strings.LastIndex(resource, "/")+1:]
		s.Apply(t, pod(name, "ls /dev/dxg* && "+forever, map[string]int{resource: 1}))
		s.waitRunning(t, name)
		mustContain(t, "pod "+name, s.lives(t, name)[name+"/main"], "PCIROOT", "/dev/dxg")
		s.remove(t, name)
	}
}

// testBadConfig leaves the node with a GPU shared among five.
func (s *suite) testBadConfig(t *testing.T) {
	ours := s.ourPod(t, daemonSet)
	read := func() []string {
		return []string{mustRead(t, "/etc/directx-nri/config.yaml"), mustRead(t, "/etc/directx-nri/inventory.yaml")}
	}
	files := read()

	t.Run("refused by helm", func(t *testing.T) {
		for _, flags := range [][]string{
			{"--set", "linux.enabeld=true"},
			{"--set", "config.replica=2"},
			{"--set", "config.replicas=-3"},
			{"--set", "image.pullPolicy=Sometimes"},
			{"--set", "metrics.port=many"},
		} {
			out, err := s.TryHelm(append([]string{"upgrade", release, chart, "--namespace", namespace, "--reuse-values"}, flags...)...)
			if err == nil {
				t.Errorf("helm takes %v", flags)
			}
			key, _, _ := strings.Cut(flags[1], "=")
			mustContain(t, "helm", out, key[strings.LastIndex(key, ".")+1:])
		}
	})
	t.Run("refused on the node", func(t *testing.T) {
		// What is wrong with these only the node knows.
		for _, bad := range []struct{ values, says string }{
			{values: "config: {extraMounts: {hostFolders: [lib]}}", says: "hostFolders[0]"},
			{values: `inventory: {devices: [{instanceID: 'PCI\1', display: true, linux: {deviceNodes: [dev/null]}}]}`, says: "deviceNodes[0]"},
		} {
			s.helmUpgrade(t, "--reuse-values", "--set", "config.replicas=5", "--values", s.values(t, bad.values))
			node.Eventually(t, timeout, "the log says what is wrong with "+bad.values, func() error {
				log := s.Kubectl(t, "logs", "--namespace", namespace, "daemonset/"+daemonSet, "--container", "config-watch")
				for line := range strings.Lines(log) {
					if strings.Contains(line, "level=error") && strings.Contains(line, bad.says) {
						t.Log(strings.TrimSpace(line))
						return nil
					}
				}
				return fmt.Errorf("it says:\n%s", log)
			})
			if diff := cmp.Diff(files, read()); diff != "" {
				t.Errorf("the node's configuration was changed (-before +after):\n%s", diff)
			}
			s.waitOffered(t, offeredMore)
			s.mustGoOn(t)
			s.mustGiveGPUs(t, display)
			s.mustBeSame(t, ours)
			s.Helm(t, "rollback", release, "--namespace", namespace)
		}
	})
	t.Run("mended", func(t *testing.T) {
		s.helmUpgrade(t, "--reuse-values", "--set", "config.replicas=5")
		s.waitOffered(t, offeredMended)
		s.mustGoOn(t)
	})
}

// testNewImage leaves the node with the newer image.
func (s *suite) testNewImage(t *testing.T) {
	ours := s.ourPod(t, daemonSet)
	s.ImportImage(t, s.images.newer.archive(t))
	s.helmUpgrade(t, "--reuse-values", "--set", "image.tag="+s.images.newer.version)
	s.rolledOut(t, daemonSet)
	s.mustGoOn(t)
	if now := s.ourPod(t, daemonSet); now.UID == ours.UID {
		t.Errorf("the DaemonSet's pod is still %s", now.Name)
	}
	s.mustRunVersion(t, s.images.newer)
	s.waitOffered(t, offeredMended)
	s.mustGiveGPUs(t, display)
	s.mustGoOn(t)
}

// mustRunVersion fails the test unless the programs that run are of an image.
func (s *suite) mustRunVersion(t *testing.T, of *image) {
	t.Helper()
	for container, program := range map[string]string{"nri": "directx-nri", "advertiser": "directx-advertiser"} {
		out := s.Kubectl(t, "exec", "--namespace", namespace, "daemonset/"+daemonSet, "--container", container, "--", "/"+program, "--version")
		mustContain(t, program, out, of.version)
	}
}

const shimFile = "/usr/local/bin/containerd-shim-directx-v1"

// testShim leaves the node with the shim.
func (s *suite) testShim(t *testing.T) {
	s.helmUpgrade(t, "--reuse-values", "--set", "linux.shim.enabled=true")
	s.rolledOut(t, daemonSet)
	s.mustHaveShim(t, s.images.newer)
	mustContain(t, "containerd's configuration", mustRead(t, bed.ContainerdConfig), shimFile)
	s.waitOffered(t, offeredMended)
	s.mustGiveGPUs(t, display)
	s.mustGoOn(t)
}

func (s *suite) mustHaveShim(t *testing.T, from *image) {
	t.Helper()
	if mustRead(t, shimFile) != mustRead(t, from.program(filepath.Base(shimFile))) {
		t.Errorf("%s is not the shim of image %s", shimFile, from.version)
	}
}

// testRollback changes image and configuration at once, and takes both back.
func (s *suite) testRollback(t *testing.T) {
	for _, step := range []struct {
		args    []string
		image   *image
		offered map[string]int
	}{
		{
			args:  []string{"upgrade", release, chart, "--reuse-values", "--set", "config.replicas=6", "--set", "image.tag=" + s.images.older.version},
			image: s.images.older, offered: offeredMore,
		},
		{args: []string{"rollback", release}, image: s.images.newer, offered: offeredMended},
	} {
		s.Helm(t, append(step.args, "--namespace", namespace)...)
		s.rolledOut(t, daemonSet)
		s.mustHaveShim(t, step.image)
		s.mustRunVersion(t, step.image)
		s.waitOffered(t, step.offered)
		s.mustGoOn(t)
	}
	s.mustGiveGPUs(t, display)
}

// pools gives nodes whose label says render a configuration of their own.
const pools = `nodePools:
  pools:
    render:
      config: {replicas: 3}
`

func (s *suite) testPools(t *testing.T) {
	const label = "directx.microsoft.com/pool"
	s.helmUpgrade(t, "--reuse-values", "--values", s.values(t, pools))
	s.rolledOut(t, daemonSet)
	s.waitOffered(t, offeredMended)

	s.Kubectl(t, "label", "node", bed.NodeName, label+"=render")
	// A GPU that more hold than it is now offered to keeps its holders.
	s.ourPod(t, daemonSet+"-render")
	s.rolledOut(t, daemonSet+"-render")
	s.waitOffered(t, map[string]int{display: 9, compute: 3, t4: 0, "example.com/npu": 0})
	s.mustGoOn(t)
	s.mustGiveGPUs(t, display)

	s.Kubectl(t, "label", "node", bed.NodeName, label+"-")
	s.ourPod(t, daemonSet)
	s.rolledOut(t, daemonSet)
	s.waitOffered(t, offeredMended)
	s.mustGoOn(t)
}
