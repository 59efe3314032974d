//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/test/bed"
)

// TestInterlock kills and freezes the plugin and the advertiser while containers are
// created and started. No container may run without its GPU, as its own process
// reports ([bed.Node.CheckMissingGPUs]), and each must run with its GPU once the programs
// work again.
func TestInterlock(t *testing.T) {
	for version, newest := range map[string]bool{"1.7": false, "2.x": true} {
		t.Run("containerd "+version, func(t *testing.T) {
			s := start(t, bed.Options{Replicas: 32, Inventory: bed.NewInventory(2, 1), Containerd2: newest})
			s.Part(t, "each step of a container", s.testInterlockSteps)
			s.Part(t, "a kubelet that was restarted while both are away", s.testInterlockKubelet)
		})
	}
}

// testInterlockSteps plays the kubelet, to kill or freeze programs between PreStartContainer and the creation of a
// container, and to have them back before its start or after it.
func (s *suite) testInterlockSteps(t *testing.T) {
	s.Kubelet.Freeze(t)
	defer s.Kubelet.Thaw(t)
	for name, which := range map[string][]*bed.Process{"plugin": {s.Plugin}, "advertiser": {s.Advertiser}, "both": {s.Plugin, s.Advertiser}} {
		for _, frozen := range []bool{false, true} {
			for _, backFirst := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, frozen %t, back before the start %t", name, frozen, backFirst), func(t *testing.T) {
					s.testInterlockStep(t, which, frozen, backFirst)
				})
			}
		}
	}
}

func (s *suite) testInterlockStep(t *testing.T, which []*bed.Process, frozen, backFirst bool) {
	display, compute := s.Inventory.GPUs[1], s.Inventory.GPUs[2]
	away, back := (*bed.Process).Kill, (*bed.Process).Start
	if frozen {
		away, back = (*bed.Process).Freeze, (*bed.Process).Thaw
	}
	each := func(do func(*bed.Process, testing.TB)) {
		for _, p := range which {
			do(p, t)
		}
	}
	sandbox := s.RunSandbox(t, "direct")
	defer sandbox.Remove(t)
	// The kubelet hands the replica of an init container on.
	initial, main := s.allocate(t, display.Index), s.allocate(t, compute.Index)
	maps.Copy(main.Annotations, s.Allocate(t, display, s.allocated-1).GetAnnotations())
	containers := []*struct {
		name   string
		answer bed.Answer
		gpus   []int
		id     string
		err    error
	}{
		{name: "init", answer: initial, gpus: []int{display.Index}},
		{name: "main", answer: main, gpus: []int{display.Index, compute.Index}},
	}
	each(away)
	for _, c := range containers {
		c.id, c.err = sandbox.Create(c.name, c.answer)
	}
	if backFirst {
		each(back)
	}
	for _, c := range containers {
		if c.err == nil {
			c.err = sandbox.Start(c.id)
		}
	}
	if !backFirst {
		each(back)
	}
	s.WaitPlugin(t)
	for _, c := range containers {
		t.Logf("%s: error of the creation or start: %v", c.name, c.err)
		if c.id != "" {
			state, err := sandbox.State(c.id)
			if running := state == cri.ContainerState_CONTAINER_RUNNING; err != nil || running != (c.err == nil) {
				t.Errorf("%s: the container's state is %v, %v", c.name, state, err)
			}
		}
		if c.err == nil {
			sandbox.MustHave(t, c.id, c.gpus...)
		}
		bed.Eventually(t, 20*time.Second, "the container starts", func() (err error) {
			c.id, err = sandbox.Run(c.name, c.answer)
			return err
		})
		sandbox.MustHave(t, c.id, c.gpus...)
	}
}

// allocate returns what the advertiser answers for another container with a GPU.
func (s *suite) allocate(t *testing.T, gpu int) bed.Answer {
	t.Helper()
	s.allocated++
	return s.Allocate(t, s.Inventory.GPUs[gpu], s.allocated)
}

// testInterlockKubelet crashes a container while both programs are away.
func (s *suite) testInterlockKubelet(t *testing.T) {
	pod := s.RunPod(t, bed.GPUPod("restarted", 1))
	before := s.Look(t, pod, "main")
	s.Advertiser.Kill(t)
	s.Plugin.Kill(t)
	// A kubelet that was restarted does not call PreStartContainer.
	s.Restart(t, s.Kubelet)
	s.WaitRunning(t, pod) // It admits the pod again, and refuses it if its container does not run then.
	mark := s.Kubelet.Mark()
	s.KillContainer(t, before)
	bed.MustContain(t, "the event of a container with the interlock", s.WaitNotStarted(t, pod, "main", mark), allocation.InterlockMount)
	s.MustNotRun(t, pod)
	s.Plugin.Start(t)
	s.Advertiser.Start(t)
	s.WaitReady(t)
	s.SyncPods(t, pod)
	s.WaitRunning(t, pod)
	s.MustHave(t, pod, "main", before.GPUs...)
}

// testPluginDown checks the events of pods while the plugin is down or hangs.
func (s *suite) testPluginDown(t *testing.T) {
	s.Part(t, "plugin down: a pod with a GPU waits with the reason in an event, one without starts", func(t *testing.T) {
		running := s.RunPod(t, bed.GPUPod("running", 1))
		s.Plugin.Stop(t)
		mark := s.Kubelet.Mark()
		gpu := s.Apply(t, bed.GPUPod("waits", 1))
		s.RunPod(t, bed.GPUPod("plain", 0))
		bed.MustContain(t, "the event of a pod while the plugin is down", s.WaitNotStarted(t, gpu, "main", mark), "directx-nri")

		// A container that crashes meanwhile waits too.
		mark = s.Kubelet.Mark()
		view := s.Look(t, running, "main")
		s.KillContainer(t, view)
		bed.MustContain(t, "the event of a crashed container while the plugin is down", s.WaitNotStarted(t, running, "main", mark), "directx-nri")
		s.MustNotRun(t, gpu)

		s.Plugin.Start(t)
		s.WaitPlugin(t)
		s.SyncPods(t, gpu, running)
		s.WaitServed(t, gpu, running)
		s.MustHave(t, running, "main", view.GPUs...)
	})

	s.Part(t, "plugin frozen before a creation: the pod waits and starts by itself", func(t *testing.T) {
		s.Plugin.Freeze(t)
		mark := s.Kubelet.Mark()
		pod := s.Apply(t, bed.GPUPod("frozen", 1))
		bed.MustContain(t, "the event of a pod while the plugin is frozen", s.WaitNotStarted(t, pod, "main", mark), "NRI")
		s.MustNotRun(t, pod)
		s.Plugin.Thaw(t)
		s.WaitServed(t, pod)
	})
}

// TestInterlockRuntimes records what low-level runtimes do with the interlock's
// mount: none starts the container, and the error names the mount, or with runc the volume of a pod at /proc.
func TestInterlockRuntimes(t *testing.T) {
	for runtime, words := range map[string]string{"runc": `to rootfs at \"` + allocation.InterlockMount, "crun": allocation.InterlockMount} {
		t.Run(runtime, func(t *testing.T) {
			if out, err := runBundle(t, runtime, "echo it runs"); err != nil || !strings.Contains(out, "it runs") {
				t.Fatalf("without the interlock: %v\n%s", err, out)
			}
			out, err := runBundle(t, runtime, "echo it runs", ocispec.ReadOnlyMount("linux", allocation.InterlockSource, allocation.InterlockMount))
			if err == nil || strings.Contains(out, "it runs") {
				t.Errorf("the container runs: %v", err)
			}
			bed.MustContain(t, "the error of "+runtime, out, words)
			volume := specs.Mount{Source: t.TempDir(), Destination: "/proc", Type: "bind", Options: []string{"rbind", "rw"}}
			out, err = runBundle(t, runtime, "echo it runs", volume,
				ocispec.ReadOnlyMount("linux", allocation.InterlockSource, allocation.InterlockMount))
			if err == nil || strings.Contains(out, "it runs") || !strings.Contains(out, "/proc") {
				t.Errorf("the container runs with a volume at /proc: %v\n%s", err, out)
			}
		})
	}
}

// runBundle runs a script by a low-level runtime, in a container with the mounts.
func runBundle(t *testing.T, runtime, script string, mounts ...specs.Mount) (output string, err error) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	testutil.NoError(t, err)
	bundle := t.TempDir()
	for _, dir := range []string{"proc", "dev", "sys"} {
		testutil.NoError(t, os.MkdirAll(filepath.Join(bundle, "rootfs", dir), 0o755))
	}
	bed.WriteFile(t, filepath.Join(bundle, "rootfs/bin/sh"), string(bed.ReadFile(t, busybox)), 0o755)
	spec := bed.Standalone{ID: "bundle", Script: script, Mounts: mounts}.Spec(bed.Cgroup())
	spec.Linux.Resources = nil
	data, err := json.Marshal(spec)
	testutil.NoError(t, err)
	bed.WriteFile(t, filepath.Join(bundle, "config.json"), string(data), 0o644)
	// Debian 12's crun does not run with the mixed control groups of this machine.
	out, err := exec.Command("unshare", "--mount", "sh", "-c", `umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"`, "sh",
		runtime, "--root", t.TempDir(), "run", "--bundle", bundle, "bundle-"+runtime).CombinedOutput()
	return string(out), err
}
