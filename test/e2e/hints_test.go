//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
	"github.com/directx-nri/directx-nri/test/bed"
)

// TestHints reads the environment variables that name a container's GPUs: two for
// display, whose UUIDs are known, and one for compute, whose is not.
func TestHints(t *testing.T) {
	inventory := bed.NewInventory(2, 1)
	for i := range 2 {
		inventory.GPUs[i].UUID = fmt.Sprintf("GPU-8932f937-d72c-4106-c12f-20bd9faed9f%d", i)
	}
	n := start(t, bed.Options{Replicas: 4, Inventory: inventory})
	mustHaveHints := func(t *testing.T, pod string) {
		t.Helper()
		var want []hint
		var uuids []string
		for _, index := range n.AssignedGPUs(t, pod, "main") {
			gpu := inventory.GPUs[index]
			want = append(want, hint{gpu.LocationPath(), gpu.LUID(), fmt.Sprintf("Simulated GPU %d", index), gpu.UUID})
			if gpu.UUID != "" {
				uuids = append(uuids, gpu.UUID)
			}
		}
		if len(uuids) == 0 {
			uuids = []string{unset}
		}
		devices, cuda := n.hints(t, pod)
		var got []hint
		testutil.NoError(t, json.Unmarshal([]byte(devices), &got))
		slices.SortFunc(got, func(a, b hint) int { return strings.Compare(a.LocationPath, b.LocationPath) })
		uuidsSet := strings.Split(cuda, ",")
		slices.Sort(uuidsSet)
		if !slices.Equal(got, want) || !slices.Equal(uuidsSet, uuids) {
			t.Errorf("the hints are %s and %q, want %+v and %q", devices, cuda, want, uuids)
		}
	}
	mustBe := func(t *testing.T, pod, wantDevices, wantCUDA string) {
		t.Helper()
		if devices, cuda := n.hints(t, pod); devices != wantDevices || cuda != wantCUDA {
			t.Errorf("the hints are %q and %q, want %q and %q", devices, cuda, wantDevices, wantCUDA)
		}
	}
	one := n.Apply(t, bed.GPUPod("one", 1))
	both := n.Apply(t, bed.GPUPod("both", 2))
	compute := n.Apply(t, bed.Pod{Name: "compute", Containers: []bed.Container{{Name: "main", Compute: 1}}})
	own := n.Apply(t, bed.Pod{Name: "own", Containers: []bed.Container{{
		Name: "main", Display: 1, Env: map[string]string{gpuedits.CUDAVariable: "7", gpuedits.DevicesVariable: "mine"},
	}}})
	plain := n.Apply(t, bed.GPUPod("plain", 0))
	n.WaitServed(t, one, both, compute, own, plain)
	for name, pod := range map[string]string{"one": one, "both": both, "compute": compute} {
		t.Run(name, func(t *testing.T) { mustHaveHints(t, pod) })
	}
	t.Run("the container's own variables stay", func(t *testing.T) { mustBe(t, own, "mine", "7") })
	t.Run("without a GPU there are none", func(t *testing.T) { mustBe(t, plain, unset, unset) })
	t.Run("a container that crashed has them again", func(t *testing.T) {
		n.Crash(t, one, "main")
		mustHaveHints(t, one)
	})
	t.Run("off from the next container on", func(t *testing.T) {
		n.Configure(t, "visibilityHints: off\n", nil)
		mustHaveHints(t, both)
		pod := n.Apply(t, bed.GPUPod("off", 1))
		n.Crash(t, both, "main")
		n.WaitServed(t, pod, both)
		mustBe(t, pod, unset, unset)
		mustBe(t, both, unset, unset)
	})
}

// hint is what a container learns of one GPU.
type hint struct{ LocationPath, LUID, Description, UUID string }

// unset is what hints returns for a variable that is not set.
const unset = "unset"

// hints returns the variables that name the GPUs of container main of a pod.
func (s *suite) hints(t *testing.T, pod string) (devices, cuda string) {
	t.Helper()
	out, _ := bed.Exec(t, s.CRI, s.ContainerID(t, pod, "main"), fmt.Sprintf(`echo "${%s-%s}"; echo "${%s-%s}"`, gpuedits.DevicesVariable, unset, gpuedits.CUDAVariable, unset))
	devices, cuda, _ = strings.Cut(strings.TrimSuffix(out, "\n"), "\n")
	return devices, strings.TrimSuffix(cuda, "\n")
}
