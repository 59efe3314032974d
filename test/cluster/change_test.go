//go:build e2e && linux

package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/test/bed"
)

// sixReplicas shares GPUs among six and adds a resource for another model.
const sixReplicas = `config:
  replicas: 6
  resources:
    - {name: example.com/npu, match: {description: Simulated NPU}}
    - {name: example.com/t4, match: {description: Simulated T4}}
    - {name: directx.microsoft.com/display, match: {kind: display}}
`

var (
	offeredSix  = map[string]int{display: 12, compute: 0, t4: 6, npu: 6}
	offeredFive = map[string]int{display: 10, compute: 0, t4: 5, npu: 5}
)

// testConfigChange leaves the node with six replicas.
func (s *suite) testConfigChange(t *testing.T) {
	before := s.podOf(t, daemonSet)
	s.helmUpgrade(t, "--reuse-values", "--values", s.values(t, sixReplicas))
	s.waitOffered(t, offeredSix)
	s.mustBeUnaffected(t)
	s.mustBeSame(t, before)
	s.mustGiveGPUs(t, display, npu, t4)
}

// testBadConfig leaves the node with five replicas.
func (s *suite) testBadConfig(t *testing.T) {
	before := s.podOf(t, daemonSet)
	read := func() []string {
		return []string{mustRead(t, "/var/lib/directx-nri/policy.json"), mustRead(t, "/var/lib/directx-nri/devices.json")}
	}
	policy := read()
	// helm does not read the text of an inventory.
	const bad = "inventory: |\n  apiVersion: directx.microsoft.com/v1alpha1\n  kind: Inventory\n  devices: " +
		"[{instanceID: 'PCI\\1', driver: {version: '1'}, display: true, linux: {deviceNodes: [dev/null]}}]\n"
	s.helmUpgrade(t, "--reuse-values", "--set", "config.replicas=5", "--values", s.values(t, bad))
	bed.Eventually(t, timeout, "the log has the error", func() error {
		log := s.kubectl(t, "logs", "--namespace", namespace, "daemonset/"+daemonSet, "--container", "advertiser")
		for line := range strings.Lines(log) {
			if strings.Contains(line, "level=error") && strings.Contains(line, "deviceNodes[0]") {
				t.Log(strings.TrimSpace(line))
				return nil
			}
		}
		return fmt.Errorf("the log is:\n%s", log)
	})
	if diff := cmp.Diff(policy, read()); diff != "" {
		t.Errorf("the node policy has changed (-before +after):\n%s", diff)
	}
	s.waitOffered(t, offeredSix)
	s.mustBeUnaffected(t)
	s.mustGiveGPUs(t, display)
	s.mustBeSame(t, before)
	s.helm(t, "rollback", release, "--namespace", namespace)
	s.helmUpgrade(t, "--reuse-values", "--set", "config.replicas=5")
	s.waitOffered(t, offeredFive)
}

// testRollback changes image and configuration at the same time, and rolls both back.
func (s *suite) testRollback(t *testing.T) {
	s.publish(t, newer)
	change := func(version string, offered map[string]int, args ...string) {
		before := s.podOf(t, daemonSet)
		s.helm(t, append(args, "--namespace", namespace)...)
		s.rolledOut(t, daemonSet)
		if now := s.podOf(t, daemonSet); now.UID == before.UID {
			t.Errorf("the DaemonSet's pod is still %s", now.Name)
		}
		for container, program := range map[string]string{"nri": "directx-nri", "advertiser": "directx-advertiser"} {
			out := s.kubectl(t, "exec", "--namespace", namespace, "daemonset/"+daemonSet, "--container", container, "--", "/"+program, "--version")
			bed.MustContain(t, program, out, version)
		}
		s.waitOffered(t, offered)
		s.mustBeUnaffected(t)
	}
	change(newer, offeredSix, "upgrade", release, chart, "--reuse-values", "--set", "config.replicas=6", "--set", "image.tag="+newer)
	change(older, offeredFive, "rollback", release)
	s.mustGiveGPUs(t, display)
}

// pools gives nodes with a label a configuration of their own, merged over the common one: its
// resources replace the common ones.
const pools = `nodePools:
  pools:
    render:
      config:
        replicas: 3
        resources:
          - {name: directx.microsoft.com/display, match: {kind: display}}
          - {name: directx.microsoft.com/compute, match: {kind: compute}}
`

func (s *suite) testPools(t *testing.T) {
	const label = "directx.microsoft.com/pool"
	s.helmUpgrade(t, "--reuse-values", "--values", s.values(t, pools))
	s.rolledOut(t, daemonSet)
	s.waitOffered(t, offeredFive)

	s.kubectl(t, "label", "node", nodeName, label+"=render")
	// More pods hold a GPU than may share it now. They keep it, so more than 9 of display are allocatable.
	s.podOf(t, daemonSet+"-render")
	s.rolledOut(t, daemonSet+"-render")
	s.waitOffered(t, map[string]int{compute: 3, t4: 0, npu: 0})
	s.mustBeUnaffected(t)
	// This pod gets the T4. What it has of it is not offered under the other name as long as the pod is there.
	s.apply(t, podManifest("pooled", bed.Wait, map[string]int{display: 1}))
	s.waitRunning(t, "pooled")
	bed.MustContain(t, "pod pooled", s.containers(t, "pooled")["pooled/main"], "T4", "/dev/dxg")

	s.kubectl(t, "label", "node", nodeName, label+"-")
	s.podOf(t, daemonSet)
	s.rolledOut(t, daemonSet)
	s.waitOffered(t, map[string]int{compute: 0, t4: 4, npu: 5})
	s.remove(t, "pooled")
}
