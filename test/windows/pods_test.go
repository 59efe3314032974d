//go:build e2e && linux

package windows

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/internal/allocation"
	"directx-nri/test/windows/bed"
)

// runtimePath is the CRI plugin's way: the runtime type of runhcs, with its
// options, and the shim that stands in front of it by path.
func runtimePath(c bed.Container, shim string) bed.Container {
	c.Runtime, c.Path, c.Options = "io.containerd.runhcs.v1", shim, true
	return c
}

const (
	runhcsShim  = "containerd-shim-runhcs-v1.exe" // the launcher, on these nodes
	directxShim = "containerd-shim-directx-v1.exe"
)

// criNamespace is the CRI plugin's.
const criNamespace = "k8s.io"

// sandbox starts a pod's sandbox with ctr, by the runtime's name.
func (n node) sandbox(t *testing.T, runtime, id string) bed.Pod {
	t.Helper()
	pod := bed.NewPod(id)
	n.MustRun(t, runtime, id, bed.JSON(t, n.SandboxSpec(t, pod)))
	return pod
}

// allocated starts a container of pod that presents token, with ctr.
func (n node) allocated(t *testing.T, pod bed.Pod, id, name string, token allocation.Token) error {
	t.Helper()
	spec := n.ContainerSpec(t, pod, id, name)
	bed.Allocate(spec, bed.Display, token)
	return n.Run(t, bed.Directx, id, bed.JSON(t, spec))
}

// byRuntimePath starts a pod, whose sandbox is to have that ID, and in it a
// container with the node's first GPU, as the CRI plugin does for a handler with
// that runtime_path. It returns the container's ID.
func (n node) byRuntimePath(t *testing.T, sandbox, shim string) string {
	t.Helper()
	pod := n.sandboxBy(t, shim, sandbox)
	id := sandbox + "-app"
	n.allocatedBy(t, shim, pod, id, n.Record(t, bed.Display, n.gpus[0].Replica(4)))
	n.mustHave(t, id, n.gpus[0])
	return id
}

// sandboxBy is the pod of byRuntimePath.
func (n node) sandboxBy(t *testing.T, shim, sandbox string) bed.Pod {
	t.Helper()
	pod := bed.NewPod(sandbox)
	n.startBy(t, shim, sandbox, n.SandboxSpec(t, pod))
	return pod
}

// allocatedBy is the container of byRuntimePath.
func (n node) allocatedBy(t *testing.T, shim string, pod bed.Pod, id string, token allocation.Token) {
	t.Helper()
	spec := n.ContainerSpec(t, pod, id, "app")
	bed.Allocate(spec, bed.Display, token)
	n.startBy(t, shim, id, spec)
}

func (n node) startBy(t *testing.T, shim, id string, spec *specs.Spec) {
	t.Helper()
	c := bed.Container{ID: id, Spec: n.SpecFile(t, id, bed.JSON(t, spec))}
	for _, a := range n.Client(t, criNamespace, runtimePath(c, shim)) {
		if a.Error != "" {
			t.Fatalf("start %s: %s", a.ID, a.Error)
		}
	}
}

func testPods(t *testing.T, n node) {
	tests := []struct {
		name string
		// replicas are the allocation: each a GPU and a replica of it.
		replicas [][2]int
		want     []int
	}{
		{"has the allocated GPU and its files", [][2]int{{0, 0}}, []int{0}},
		{"has the other GPU and its files", [][2]int{{1, 0}}, []int{1}},
		{"has both GPUs", [][2]int{{0, 1}, {1, 1}}, []int{0, 1}},
		{"has one device of two replicas of one GPU", [][2]int{{0, 2}, {0, 3}}, []int{0}},
	}
	pod := n.sandbox(t, bed.Directx, "pods")
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			id := "pods-" + string(rune('a'+i))
			var replicas []allocation.Replica
			for _, r := range test.replicas {
				replicas = append(replicas, n.gpus[r[0]].Replica(r[1]))
			}
			if err := n.allocated(t, pod, id, "app-"+id, n.Record(t, bed.Display, replicas...)); err != nil {
				t.Fatalf("start: %v", err)
			}
			var want []bed.GPU
			for _, g := range test.want {
				want = append(want, n.gpus[g])
			}
			n.mustHave(t, id, want...)
		})
	}

	t.Run("has its GPU by the CRI plugin's runtime path and options", func(t *testing.T) {
		t.Parallel()
		id := n.byRuntimePath(t, "pods-path", n.Path(directxShim))
		calls := n.ShimCalls(t, id)
		if len(calls) == 0 || len(calls[0].Stdin) == 0 {
			t.Errorf("the runtime's options did not come to the real shim: %+v", calls)
		}
	})

	t.Run("starts again with its token", func(t *testing.T) {
		t.Parallel()
		token := n.Record(t, bed.Display, n.gpus[1].Replica(5))
		for _, id := range []string{"pods-again-1", "pods-again-2"} {
			if err := n.allocated(t, pod, id, "again", token); err != nil {
				t.Fatalf("start %s: %v", id, err)
			}
			n.mustHave(t, id, n.gpus[1])
			n.Delete(t, id)
		}
	})

	t.Run("keeps its own mounts", func(t *testing.T) {
		t.Parallel()
		id := "pods-mounts"
		spec := n.ContainerSpec(t, pod, id, "mounts")
		own := bed.Mapped{HostPath: n.Path("base"), ContainerPath: `C:\windows/system32\NVCUDA.dll`, ReadOnly: false}
		addMount(spec, own)
		bed.Allocate(spec, bed.Display, n.Record(t, bed.Display, n.gpus[0].Replica(6)))
		if err := n.Run(t, bed.Directx, id, bed.JSON(t, spec)); err != nil {
			t.Fatalf("start: %v", err)
		}
		ours := 0
		for _, m := range n.Document(t, id).MappedDirectories {
			if place := strings.ToLower(strings.ReplaceAll(m.ContainerPath, "/", `\`)); place == `c:\windows\system32\nvcuda.dll` {
				ours++
				if !strings.EqualFold(m.HostPath, own.HostPath) || m.ReadOnly {
					t.Errorf("the container's own mount became %+v, want %+v", m, own)
				}
			}
		}
		if ours != 1 {
			t.Errorf("the place of the container's own mount is mapped %d times, want once", ours)
		}
	})

	t.Run("has no GPU without an allocation, whatever it asks for", func(t *testing.T) {
		t.Parallel()
		id, plain := "pods-asks", "pods-asks-plain"
		for runtime, id := range map[string]string{bed.Directx: id, n.Plain(): plain} {
			spec := n.ContainerSpec(t, pod, id, "asks")
			spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=all")
			if err := n.Run(t, runtime, id, bed.JSON(t, spec)); err != nil {
				t.Fatalf("start %s: %v", id, err)
			}
		}
		n.mustEqualPlain(t, id, plain)
	})
}
