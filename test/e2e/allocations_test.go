//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/test/bed"
)

// allocationLine is what `dxctl allocations -o json` prints of a replica.
type allocationLine struct {
	Resource, Replica, Namespace, Pod, PodUID, Container string
	Since                                                *time.Time
}

// TestAllocations compares what dxctl reports with what the kubelet allocated.
func TestAllocations(t *testing.T) {
	s := start(t, bed.Options{Replicas: 4, Inventory: bed.NewInventory(2, 1)})
	if status, stdout, stderr := call(t, s.DxctlCommand("allocations", "-o", "json")); status != 0 || stdout != "[]\n" || stderr == "" {
		t.Errorf("before the first pod: status %d\n%s%s", status, stdout, stderr)
	}
	s.RunPod(t, bed.GPUPod("one", 1))
	s.RunPod(t, bed.Pod{Name: "both", Containers: []bed.Container{{Name: "main", Display: 2}, {Name: "npu", Compute: 1}}})

	status, stdout, stderr := call(t, s.DxctlCommand("allocations", "-o", "json"))
	var lines []allocationLine
	if err := json.Unmarshal([]byte(stdout), &lines); err != nil || status != 0 || stderr != "" {
		t.Fatalf("status %d, %v\n%s%s", status, err, stdout, stderr)
	}
	held := s.Held(t)
	if len(lines) != 4 || len(held) != 4 {
		t.Errorf("%d replicas are reported, want 4: %+v", len(lines), lines)
	}
	for _, h := range held {
		if !slices.ContainsFunc(lines, func(line allocationLine) bool {
			return line.Resource == h.Resource && line.Replica == h.Replica && line.Namespace == "default" &&
				strings.HasPrefix(line.Pod, h.Pod+"-") && line.Container == h.Container && line.PodUID != "" && line.Since != nil
		}) {
			t.Errorf("%+v is not among %+v", h, lines)
		}
	}
}
