//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"directx-nri/test/bed"
)

// allocationLine is what `dxctl allocations -o json` says of a replica.
type allocationLine struct {
	Resource, Replica, State, Reason, Namespace, Pod, PodUID, Container string
	Since                                                               *time.Time
}

// TestAllocations compares what dxctl reports with what the kubelet allocated,
// whether dxctl asks the kubelet or containerd.
func TestAllocations(t *testing.T) {
	s := &suite{inventory: bed.NewInventory(2, 1)}
	s.Node = bed.Start(t, bed.Options{Replicas: 4, Inventory: s.inventory})
	if stdout, stderr, err := s.allocationsAs("json"); err != nil || stdout != "[]\n" || stderr == "" {
		t.Errorf("before the first pod: %v\n%s%s", err, stdout, stderr)
	}
	one := s.Apply(t, bed.GPUPod("one", 1))
	s.WaitRunning(t, one)
	both := s.Apply(t, bed.Pod{Name: "both", Containers: []bed.Container{{Name: "main", Display: 2}, {Name: "npu", Compute: 1}}})
	s.WaitRunning(t, both)

	lines := s.allocations(t)
	if len(lines) != 4 {
		t.Errorf("%d replicas are reported, want 4: %+v", len(lines), lines)
	}
	for pod, containers := range map[string][]string{one: {"main"}, both: {"main", "npu"}} {
		for _, container := range containers {
			for resource, replicas := range s.Assigned(t, pod, container) {
				for _, replica := range replicas {
					s.mustHold(t, lines, resource, replica, pod, container)
				}
			}
		}
	}
	table, _, err := s.allocationsAs("table")
	if err != nil || !strings.Contains(table, "held") || strings.Contains(table, "stale") {
		t.Errorf("%v\n%s", err, table)
	}

	s.Remove(t, one)
	bed.Eventually(t, time.Minute, "the removed pod's replica is stale, and no other", func() error {
		stale := 0
		for _, line := range s.allocations(t) {
			gone := strings.HasPrefix(line.Pod, one+"-")
			if gone != (line.State == "stale") {
				return fmt.Errorf("%+v", line)
			}
			if gone {
				stale++
			}
		}
		if stale != 1 {
			return fmt.Errorf("%d are stale", stale)
		}
		return nil
	})
	if stdout, _, err := s.allocationsAs("table", "--stale"); err != nil || strings.Count(stdout, "\n") != 2 || !strings.Contains(stdout, one) {
		t.Errorf("--stale: %v\n%s", err, stdout)
	}

	// Without the kubelet containerd is asked, which may have the removed pod's
	// sandbox for a while.
	stdout, stderr, err := s.allocationsAs("json", "--pod-resources-socket", filepath.Join(t.TempDir(), "none"))
	var alone []allocationLine
	if err != nil || json.Unmarshal([]byte(stdout), &alone) != nil || stderr == "" {
		t.Errorf("without the kubelet: %v\n%s%s", err, stdout, stderr)
	}
	for _, line := range alone {
		if want := strings.HasPrefix(line.Pod, both+"-"); want != (line.State == "held") {
			t.Errorf("without the kubelet: %+v", line)
		}
	}
}

// allocations returns the allocations that dxctl reports.
func (s *suite) allocations(t *testing.T) []allocationLine {
	t.Helper()
	stdout, stderr, err := s.allocationsAs("json")
	var lines []allocationLine
	if err == nil {
		err = json.Unmarshal([]byte(stdout), &lines)
	}
	if err != nil || stderr != "" {
		t.Fatalf("dxctl allocations: %v\n%s%s", err, stdout, stderr)
	}
	return lines
}

func (s *suite) allocationsAs(output string, more ...string) (stdout, stderr string, err error) {
	return s.Dxctl("allocations", append([]string{"--state-dir", s.StateDir, "--cri-socket", s.Address(), "-o", output}, more...)...)
}

// mustHold fails the test unless lines say that the container holds the replica.
func (s *suite) mustHold(t *testing.T, lines []allocationLine, resource, replica, pod, container string) {
	t.Helper()
	for _, line := range lines {
		if line.Resource == resource && line.Replica == replica {
			if line.State != "held" || !strings.HasPrefix(line.Pod, pod+"-") || line.Namespace != "default" || line.Container != container || line.PodUID == "" || line.Since == nil {
				t.Errorf("replica %s is held by container %s of pod %s, and dxctl says %+v", replica, container, pod, line)
			}
			return
		}
	}
	t.Errorf("replica %s of %s is not reported", replica, resource)
}
