//go:build e2e && linux

package windows

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/internal/allocation"
	"directx-nri/test/windows/bed"
)

const (
	runhcsShim  = "containerd-shim-runhcs-v1.exe" // the launcher, on these nodes
	directxShim = "containerd-shim-directx-v1.exe"

	// criNamespace is that of the CRI plugin.
	criNamespace = "k8s.io"
)

// runtimePath sets the runtime as the CRI plugin does for a handler with a runtime_path:
// the type of runhcs, with its options, and the path of a shim.
func runtimePath(c bed.Container, shim string) bed.Container {
	c.Runtime, c.Path, c.Options = bed.Runhcs, shim, true
	return c
}

// sandbox starts a pod's sandbox with ctr.
func (n node) sandbox(t *testing.T, runtime, id string) bed.Pod {
	t.Helper()
	pod := bed.NewPod(id)
	n.MustRun(t, runtime, id, bed.JSON(t, n.SandboxSpec(t, pod)))
	return pod
}

// allocated starts a container of pod with ctr, with the advertiser's answer.
func (n node) allocated(t *testing.T, pod bed.Pod, id, name string, token allocation.Token) error {
	t.Helper()
	spec := n.ContainerSpec(t, pod, id, name)
	bed.Allocate(spec, bed.Display, token)
	return n.Run(t, bed.Directx, id, bed.JSON(t, spec))
}

// startBy starts a container by a runtime path.
func (n node) startBy(t *testing.T, shim, namespace, id string, spec *specs.Spec) {
	t.Helper()
	c := bed.Container{ID: id, Spec: n.SpecFile(t, id, bed.JSON(t, spec))}
	for _, a := range n.Client(t, namespace, runtimePath(c, shim)) {
		if a.Error != "" {
			t.Fatalf("start %s: %s", a.ID, a.Error)
		}
	}
}

// sandboxBy starts a pod's sandbox by a runtime path.
func (n node) sandboxBy(t *testing.T, shim, sandbox string) bed.Pod {
	t.Helper()
	pod := bed.NewPod(sandbox)
	n.startBy(t, shim, criNamespace, sandbox, n.SandboxSpec(t, pod))
	return pod
}

// allocatedBy starts a container of pod by a runtime path, with the advertiser's answer.
func (n node) allocatedBy(t *testing.T, shim string, pod bed.Pod, id string, token allocation.Token) {
	t.Helper()
	spec := n.ContainerSpec(t, pod, id, "app")
	bed.Allocate(spec, bed.Display, token)
	n.startBy(t, shim, criNamespace, id, spec)
}

// byRuntimePath starts a pod with the node's first GPU by a runtime path, and returns the
// ID of its container.
func (n node) byRuntimePath(t *testing.T, sandbox, shim string) string {
	t.Helper()
	id := sandbox + "-app"
	n.allocatedBy(t, shim, n.sandboxBy(t, shim, sandbox), id, n.Record(t, bed.Display, n.gpus[0].Replica(4)))
	n.mustHave(t, id, n.gpus[0])
	return id
}

func (n node) testPods(t *testing.T) {
	pod := n.sandbox(t, bed.Directx, "pods")
	for i, test := range []struct {
		name string
		// replicas are the allocation: each a GPU and a replica of it.
		replicas [][2]int
		want     []bed.GPU
	}{
		{"the first GPU", [][2]int{{0, 0}}, n.gpus[:1]},
		{"the other GPU", [][2]int{{1, 0}}, n.gpus[1:]},
		{"both GPUs", [][2]int{{0, 1}, {1, 1}}, n.gpus},
		{"two replicas of a GPU", [][2]int{{0, 2}, {0, 3}}, n.gpus[:1]},
	} {
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
			n.mustHave(t, id, test.want...)
		})
	}

	t.Run("by a runtime path, with options", func(t *testing.T) {
		t.Parallel()
		id := n.byRuntimePath(t, "pods-path", n.Path(directxShim))
		if calls := n.ShimCalls(t, id); len(calls) == 0 || len(calls[0].Stdin) == 0 {
			t.Errorf("the real shim got no options: %+v", calls)
		}
	})

	t.Run("a restart with the same token", func(t *testing.T) {
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

	t.Run("the pod's own mounts win", func(t *testing.T) {
		t.Parallel()
		id := "pods-mounts"
		spec := n.ContainerSpec(t, pod, id, "mounts")
		own := bed.Mapped{HostPath: n.Path("base"), ContainerPath: `C:\windows/system32\NVCUDA.dll`}
		spec.Mounts = append(spec.Mounts, specs.Mount{Source: own.HostPath, Destination: own.ContainerPath})
		bed.Allocate(spec, bed.Display, n.Record(t, bed.Display, n.gpus[0].Replica(6)))
		n.MustRun(t, bed.Directx, id, bed.JSON(t, spec))
		found := 0
		for _, m := range n.Document(t, id).MappedDirectories {
			if path := strings.ToLower(strings.ReplaceAll(m.ContainerPath, "/", `\`)); path == `c:\windows\system32\nvcuda.dll` {
				found++
				if !strings.EqualFold(m.HostPath, own.HostPath) || m.ReadOnly {
					t.Errorf("the pod's own mount became %+v, want %+v", m, own)
				}
			}
		}
		if found != 1 {
			t.Errorf("the path of the pod's own mount is mapped %d times, want once", found)
		}
	})

	t.Run("no GPU without an allocation", func(t *testing.T) {
		t.Parallel()
		id, plain := "pods-asks", "pods-asks-plain"
		for runtime, id := range map[string]string{bed.Directx: id, n.Plain(): plain} {
			spec := n.ContainerSpec(t, pod, id, "asks")
			spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=all")
			n.MustRun(t, runtime, id, bed.JSON(t, spec))
		}
		n.mustEqualPlain(t, id, plain)
	})
}
