//go:build e2e && linux

package e2e

import (
	"errors"
	"slices"
	"strings"
	"testing"

	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// TestAttacks has pods that try to get a GPU that the kubelet did not allocate to them, with the kubelets of
// Linux and with that of Windows, which allocates when it creates a container or at admission.
func TestAttacks(t *testing.T) {
	for name, options := range map[string]bed.Options{
		"Linux": {}, "newest": {Containerd2: true}, "Windows": {WindowsKubelet: true}, "Windows with affinity": {WindowsKubelet: true, Affinity: true},
	} {
		t.Run(name, func(t *testing.T) {
			options.Replicas, options.Inventory = 8, bed.NewInventory(2, 1)
			s := start(t, options)
			s.testAttacks(t)
			if options.WindowsKubelet {
				return // What containerd hands on does not depend on the kubelet.
			}
			s.EditContainerd(t, `"io.containerd.runc.v2"`, `"io.containerd.runc.v2"
      pod_annotations = ["*", "*/*"]
      container_annotations = ["*", "*/*"]`) // An asterisk matches no slash.
			s.WaitReady(t)
			t.Run("containerd hands all annotations on", s.testAttacks)
			const annotation = "example.com/handed-on"
			pod := s.RunPod(t, bed.Pod{Name: "annotated", Annotations: map[string]string{annotation: ""}, Containers: []bed.Container{{Name: "main"}}})
			annotations := s.Look(t, pod, "main").Annotations
			if _, ok := annotations[annotation]; !ok {
				t.Errorf("containerd hands no annotations on: %v", annotations)
			}
		})
	}
}

func (s *suite) testAttacks(t *testing.T) {
	owner := s.RunPod(t, bed.GPUPod("owner", 1))
	gpu := s.Inventory.GPUs[s.AssignedGPUs(t, owner, "main")[0]]
	held := s.Look(t, owner, "main").Allocations[displayKey]
	unbound := s.leak(t)
	for _, id := range []string{held, unbound} {
		if _, err := allocation.ParseID(id); err != nil {
			t.Fatalf("%q: %v", id, err)
		}
	}
	t.Run("an environment variable", func(t *testing.T) { s.testNoVariable(t, owner) })
	t.Run("the annotation of a pod", func(t *testing.T) { s.testForged(t, held, unbound) })
	t.Run("what grants nothing", func(t *testing.T) { s.testGrantsNothing(t, gpu, held, unbound) })
	t.Run("the annotation of a pod that runs", func(t *testing.T) { s.testLate(t, held, unbound) })
	t.Run("the annotation of another container", func(t *testing.T) { s.testOtherContainer(t, held, unbound) })

	for _, entry := range s.records(t) {
		switch id := string(entry.ID); {
		case id == held && (entry.Holder == nil || entry.Holder.PodName != owner+"-"+bed.Name):
			t.Errorf("the owner's record is bound to %v", entry.Holder)
		case id == unbound && entry.Holder != nil && !strings.HasPrefix(entry.Holder.PodName, "stranger-"):
			t.Errorf("the unbound record is bound to %v", entry.Holder)
		}
	}
	s.crash(t, owner)
}

// testNoVariable looks for the IDs of allocations in the environment of a container that has one.
func (s *suite) testNoVariable(t *testing.T, pod string) {
	environment, _ := bed.Exec(t, s.CRI, s.ContainerID(t, pod, "main"), "env")
	s.mustHaveNoID(t, "the environment", environment)
}

// mustHaveNoID fails the test if a text has the ID of an allocation.
func (s *suite) mustHaveNoID(t *testing.T, what, text string) {
	t.Helper()
	for _, entry := range s.records(t) {
		if strings.Contains(text, string(entry.ID)) {
			t.Errorf("%s has the ID of an allocation: %s", what, text)
		}
	}
}

// testForged has pods with the kubelet's annotation. They do not start, whether they request a GPU or not.
func (s *suite) testForged(t *testing.T, held, unbound string) {
	mark := s.Kubelet.Mark()
	refused := map[string]string{} // annotations by pod
	for _, row := range []struct {
		key, value string
		display    int
	}{
		{displayKey, held, 0}, {displayKey, unbound, 0}, {displayKey, unbound, 1}, {computeKey, held, 0},
		{displayKey, strings.Repeat("0", 32), 0}, {displayKey, "../../etc/passwd", 0}, {displayKey, "", 0}, {"directx.microsoft.com/allocation.other", unbound, 0},
	} {
		pod := bed.GPUPod("forged", row.display)
		pod.Annotations = map[string]string{row.key: row.value}
		refused[s.Apply(t, pod)] = row.key
	}
	for pod, key := range refused {
		message := s.WaitNotStarted(t, pod, "main", mark)
		bed.MustContain(t, "the event", message, key, "only the kubelet may set", "default/"+pod)
		s.mustHaveNoID(t, "the event", message)
		s.MustNotRun(t, pod)
	}
}

// testGrantsNothing has pods that run, without a GPU.
func (s *suite) testGrantsNothing(t *testing.T, gpu bed.GPU, held, unbound string) {
	const image = "dx.test/attack:1"
	variables := map[string]string{"DIRECTX_ALLOCATION_DISPLAY": held, "DIRECTX_ALLOCATION_COMPUTE": unbound, "DIRECTX_VISIBLE_DEVICES": "all"}
	s.ImportImage(t, image, bed.ImageConfig{
		Env:    []string{"DIRECTX_ALLOCATION_DISPLAY=" + unbound, "DIRECTX_VISIBLE_DEVICES=all"},
		Labels: map[string]string{displayKey: unbound, "io.kubernetes.container.annotations": displayKey + "=" + unbound},
	})
	pod := s.Apply(t, bed.Pod{
		Name: "nothing",
		Annotations: map[string]string{
			"directx.microsoft.com/allocation":      unbound,
			"directx.microsoft.com/extra-mounts":    s.DeviceNode(gpu),
			"directx.microsoft.com/visible-devices": "all",
			"directx.microsoft.com/devices":         gpu.LocationPath(),
			"io.kubernetes.cri.container-name":      "main",
		},
		Containers: []bed.Container{{Name: "variables", Env: variables}, {Name: "image", Image: image}},
	})
	s.WaitRunning(t, pod)
	for _, container := range []string{"variables", "image"} {
		s.mustNotOpen(t, s.MustHave(t, pod, container), gpu)
	}
}

// testLate has pods that get the kubelet's annotation when they run. Their sandboxes do not have it, so that the
// next start of a container differs.
func (s *suite) testLate(t *testing.T, held, unbound string) {
	ids := map[string]string{}
	for _, id := range []string{unbound, held} {
		ids[s.Apply(t, bed.GPUPod("late", 0))] = id
	}
	for pod, id := range ids {
		s.WaitServed(t, pod)
		s.Annotate(t, pod, map[string]string{displayKey: id})
		s.WaitStatus(t, pod, "it has the annotation", func(status bed.Status) error {
			if status.Annotations[displayKey] != id {
				return errors.New("it does not")
			}
			return nil
		})
		s.Crash(t, pod, "main")
		s.MustHave(t, pod, "main")
	}
}

// leak has a pod that makes the kubelet write its environment into its status before its container exists. It
// returns the ID of the pod's allocation, which is not there, and which stays unbound.
func (s *suite) leak(t *testing.T) (unbound string) {
	t.Helper()
	before := s.records(t)
	pod := s.Apply(t, bed.Pod{Name: "path", Containers: []bed.Container{{
		Name: "main", Display: 1, Env: map[string]string{"UP": ".."}, SubPathExpr: "$(UP)/$(DIRECTX_ALLOCATION_DISPLAY)",
	}}})
	status := s.WaitStatus(t, pod, "its path is refused", func(status bed.Status) error {
		if c, _ := status.Container("main"); c.State.Waiting == nil || !strings.Contains(c.State.Waiting.Message, "DIRECTX_ALLOCATION_DISPLAY") {
			return errors.New("it is not")
		}
		return nil
	})
	s.mustHaveNoID(t, "the pod's status", status.String())
	for _, event := range s.EventsSince(pod, 0) {
		s.mustHaveNoID(t, "an event", event.Message)
	}
	for _, entry := range s.records(t) {
		if !slices.ContainsFunc(before, func(e allocation.Entry) bool { return e.ID == entry.ID }) {
			unbound = string(entry.ID)
		}
	}
	return unbound
}

// testOtherContainer plays a kubelet that gives an allocation to another container too: one that is bound belongs
// to its container for good, and one that is not to the first that presents it.
func (s *suite) testOtherContainer(t *testing.T, held, unbound string) {
	s.Kubelet.Freeze(t)
	defer s.Kubelet.Thaw(t)
	sandbox := s.RunSandbox(t, "stranger")
	defer sandbox.Remove(t)
	present := func(container, id string) error {
		answer := &deviceplugin.ContainerAllocateResponse{Annotations: map[string]string{displayKey: id}}
		answer.Mounts = []*deviceplugin.Mount{{ContainerPath: allocation.InterlockMount, HostPath: allocation.InterlockSource}}
		_, err := sandbox.Run(container, answer)
		return err
	}
	testutil.NoError(t, present("first", unbound))
	for container, id := range map[string]string{"second": unbound, "main": held} {
		err := present(container, id)
		if err == nil || !strings.Contains(err.Error(), displayKey) || !strings.Contains(err.Error(), `container "`+container+`"`) {
			t.Errorf("container %s: %v", container, err)
		}
	}
}
