//go:build e2e && windows

package windows

import (
	"os"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// TestAttacks has the attacks of TestChain where containerd hands all annotations on.
func TestAttacks(t *testing.T) {
	t.Parallel()
	for name, release := range releases() {
		if skipsShim(release) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, bed.Options{Name: "attacks-" + name, Release: release, AllAnnotations: true})
			n.testAttacks(t)
			pod := n.RunPod(t, n.Name("annotated"), bed.Annotated(map[string]string{"example.com/handed-on": ""}))
			id := n.MustStartContainer(t, pod, n.NewContainer("annotated"))
			if spec := n.ShimCalls(t, id)[0].Config; !strings.Contains(spec, "example.com/handed-on") {
				t.Errorf("containerd hands no annotations on: %s", spec)
			}
		})
	}
}

// imageID is the ID of an allocation in the environment and the labels of the image under Wine.
const imageID allocation.ID = "0123456789abcdef0123456789abcdef"

// testAttacks has containers that try to get a GPU that the kubelet did not allocate to them. With the interlock of
// another allocation they do not start, and without it they start without a GPU.
func (n node) testAttacks(t *testing.T) {
	key := allocation.AnnotationKey(bed.Display)
	held, unbound, damaged := n.Record(t, n.GPUs[0].Replica(10)), n.Record(t, n.GPUs[0].Replica(11)), n.Record(t, n.GPUs[0].Replica(12))
	record := strings.ReplaceAll(string(bed.ReadFile(t, n.RecordFile(unbound))), string(unbound), string(imageID))
	unbound = imageID
	testutil.NoError(t, os.WriteFile(n.RecordFile(damaged), []byte("{"), 0o600), os.WriteFile(n.RecordFile(unbound), []byte(record), 0o600))

	owner, stranger := n.RunPod(t, n.Name("owner")), n.RunPod(t, n.Name("stranger"))
	forger := n.RunPod(t, n.Name("forger"), bed.Annotated(map[string]string{key: string(unbound)}))
	impostor := n.RunPod(t, n.Name("impostor"), bed.Annotated(map[string]string{
		decision.ContainerTypeAnnotation: "", decision.SandboxIDAnnotation: owner.ID, "io.kubernetes.cri.sandbox-uid": owner.Name,
		"io.kubernetes.cri.sandbox-name": owner.Name, "io.kubernetes.cri.container-name": "main", decision.VisibleAnnotation: "all",
	}))
	n.MustStartContainer(t, owner, n.NewAllocated("main", held), n.GPUs[0])
	t.Run("all", func(t *testing.T) {
		for name, test := range map[string]struct {
			pod  bed.Pod
			id   allocation.ID // in the kubelet's annotation, which "" leaves out
			says string
		}{
			"variables-and-image": {stranger, "", "does not report which"},
			"made-up":             {stranger, allocation.NewID(), "no allocation is recorded"},
			"malformed":           {stranger, "x", "not the ID of an allocation"},
			"damaged":             {stranger, damaged, string(damaged)},
			"main":                {stranger, held, "belongs to another container"},
			"sibling":             {owner, held, "belongs to another container"},
			"key-of-pod":          {forger, "", key},
			"key-of-pod-and-it":   {forger, unbound, key},
			"late-key-of-pod":     {stranger.WithAnnotations(map[string]string{key: string(unbound)}), "", "does not report which"},
			"impostor":            {impostor, held, "belongs to another container"},
			"standalone":          {impostor, "", "does not report which"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := n.NewAllocated(name, test.id)
				if test.id == "" {
					delete(c.Annotations, key)
				}
				for _, variable := range []string{"DIRECTX_ALLOCATION_DISPLAY=" + string(unbound), decision.VisibleVariable + "=all"} {
					name, value, _ := strings.Cut(variable, "=")
					c.Envs = append(c.Envs, &cri.KeyValue{Key: name, Value: []byte(value)})
				}
				id, err := n.StartContainer(t, test.pod, c)
				n.MustRefuse(t, id, err, test.says, `"`+name+`"`, test.pod.Name)
				c.Devices = nil
				n.MustBeUnchanged(t, bed.CRINamespace, n.MustStartContainer(t, test.pod, c))
			})
		}
	})
	n.MustStartContainer(t, owner, n.NewAllocated("main", held), n.GPUs[0])
	n.MustStartContainer(t, stranger, n.NewAllocated("first", unbound), n.GPUs[0])
}
