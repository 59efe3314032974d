//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"directx-nri/ocispec"
	"directx-nri/test/bed"
)

// TestHints reads the environment variables that name a container's GPUs: two for
// display, whose UUIDs are known, and one for compute, whose is not.
func TestHints(t *testing.T) {
	inventory := bed.NewInventory(2, 1)
	for i := range 2 {
		inventory.GPUs[i].UUID = fmt.Sprintf("GPU-8932f937-d72c-4106-c12f-20bd9faed9f%d", i)
	}
	n := bed.Start(t, bed.Options{Replicas: 4, Inventory: inventory})
	mustHaveHints := func(t *testing.T, pod string) {
		t.Helper()
		env := environ(t, n, pod, "main")
		var want []map[string]any
		var uuids []string
		for _, index := range slices.Compact(n.AssignedGPUs(t, pod, "main")) {
			gpu := inventory.GPUs[index]
			hint := map[string]any{"locationPath": gpu.LocationPath(), "luid": gpu.LUID(), "description": fmt.Sprintf("Simulated GPU %d", index)}
			if gpu.UUID != "" {
				hint["uuid"] = gpu.UUID
				uuids = append(uuids, gpu.UUID)
			}
			want = append(want, hint)
		}
		var got []map[string]any
		if err := json.Unmarshal([]byte(env[ocispec.DevicesVariable]), &got); err != nil || len(got) != len(want) {
			t.Fatalf("%s is %q (%v), want %v", ocispec.DevicesVariable, env[ocispec.DevicesVariable], err, want)
		}
		for _, hint := range want {
			if !slices.ContainsFunc(got, func(g map[string]any) bool {
				for key, value := range hint {
					if g[key] != value {
						return false
					}
				}
				return g["uuid"] == hint["uuid"]
			}) {
				t.Errorf("%s is %v, without %v", ocispec.DevicesVariable, got, hint)
			}
		}
		cuda, set := env[ocispec.CUDAVariable]
		uuidsSet := strings.Split(cuda, ",")
		slices.Sort(uuidsSet)
		if set != (len(uuids) > 0) || set && !slices.Equal(uuidsSet, uuids) {
			t.Errorf("%s is %q, set %t, want %q", ocispec.CUDAVariable, cuda, set, uuids)
		}
	}
	one := n.Apply(t, bed.GPUPod("one", 1))
	both := n.Apply(t, bed.GPUPod("both", 2))
	compute := n.Apply(t, bed.Pod{Name: "compute", Containers: []bed.Container{{Name: "main", Compute: 1}}})
	own := n.Apply(t, bed.Pod{Name: "own", Containers: []bed.Container{{
		Name: "main", Display: 1, Env: map[string]string{ocispec.CUDAVariable: "7", ocispec.DevicesVariable: "mine"},
	}}})
	plain := n.Apply(t, bed.GPUPod("plain", 0))
	n.WaitRunning(t, one, both, compute, own, plain)
	for name, pod := range map[string]string{"one": one, "both": both, "compute": compute} {
		t.Run(name, func(t *testing.T) { mustHaveHints(t, pod) })
	}
	t.Run("the container's own variables stay", func(t *testing.T) {
		env := environ(t, n, own, "main")
		if env[ocispec.CUDAVariable] != "7" || env[ocispec.DevicesVariable] != "mine" {
			t.Errorf("it has %v", env)
		}
		n.MustHave(t, own, "main", n.AssignedGPUs(t, own, "main")...)
	})
	t.Run("without a GPU there are none", func(t *testing.T) { mustHaveNoHints(t, environ(t, n, plain, "main")) })
	t.Run("a container that crashed has them again", func(t *testing.T) {
		n.Crash(t, one, "main")
		mustHaveHints(t, one)
	})
	t.Run("off from the next container on", func(t *testing.T) {
		n.Configure(t, "visibilityHints: off\n")
		n.WaitOffered(t)
		mustHaveHints(t, both)
		pod := n.Apply(t, bed.GPUPod("off", 1))
		n.WaitRunning(t, pod)
		n.Crash(t, both, "main")
		for _, pod := range []string{pod, both} {
			mustHaveNoHints(t, environ(t, n, pod, "main"))
			n.MustHave(t, pod, "main", slices.Compact(n.AssignedGPUs(t, pod, "main"))...)
		}
	})
}

func mustHaveNoHints(t *testing.T, env map[string]string) {
	t.Helper()
	for _, name := range []string{ocispec.CUDAVariable, ocispec.DevicesVariable} {
		if value, set := env[name]; set {
			t.Errorf("%s is %q, want none", name, value)
		}
	}
}

// environ returns the variables of a container's first process.
func environ(t *testing.T, n *bed.Node, pod, container string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", n.Look(t, pod, container).PID))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for entry := range strings.SplitSeq(string(data), "\x00") {
		if name, value, found := strings.Cut(entry, "="); found {
			env[name] = value
		}
	}
	return env
}
