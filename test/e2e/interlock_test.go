//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"directx-nri/internal/allocation"
	"directx-nri/test/bed"
)

// away is a way in which programs of the node do not work while containers are created
// and started.
type away struct {
	name       string
	which      []*bed.Process
	leave, ret func(testing.TB, *bed.Process)
}

// ways returns all combinations of programs and of being killed or frozen.
func ways(n *bed.Node) []away {
	var all []away
	for _, programs := range []struct {
		name  string
		which []*bed.Process
	}{
		{"the plugin", []*bed.Process{n.Plugin}},
		{"the advertiser", []*bed.Process{n.Advertiser}},
		{"both", []*bed.Process{n.Plugin, n.Advertiser}},
	} {
		all = append(all,
			away{programs.name + " killed", programs.which,
				func(t testing.TB, p *bed.Process) { p.Kill(t) }, func(t testing.TB, p *bed.Process) { p.Start(t) }},
			away{programs.name + " stopped", programs.which,
				func(t testing.TB, p *bed.Process) { p.Freeze(t) }, func(t testing.TB, p *bed.Process) { p.Thaw(t) }})
	}
	return all
}

func (a away) gone(t testing.TB) {
	t.Helper()
	for _, p := range a.which {
		a.leave(t, p)
	}
}

func (a away) back(t testing.TB) {
	t.Helper()
	for _, p := range a.which {
		a.ret(t, p)
	}
}

// TestInterlock kills and freezes the plugin and the advertiser while containers are
// created and started. No container may run without its GPU, as its own process
// reports ([bed.Node.CheckWitness]), and each must run with its GPU once the programs
// work again.
func TestInterlock(t *testing.T) {
	for _, version := range []string{bed.Containerd1, bed.Containerd2} {
		t.Run("containerd "+version, func(t *testing.T) {
			s := &suite{inventory: bed.NewInventory(2, 1)}
			s.Node = bed.Start(t, bed.Options{Replicas: 16, Inventory: s.inventory, Containerd2: version == bed.Containerd2})
			s.run(t, "each step of a container", s.testInterlockSteps)
			s.run(t, "a kubelet that was restarted while both are away", s.testInterlockKubelet)
		})
	}
}

// testInterlockSteps plays the kubelet, to interrupt programs between
// PreStartContainer and the creation of a container.
func (s *suite) testInterlockSteps(t *testing.T) {
	s.Kubelet.Freeze(t)
	defer s.Kubelet.Thaw(t)
	gpu := s.inventory.GPUs[1]
	replica := 0
	for _, way := range ways(s.Node) {
		for _, backFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, back before the start %t", way.name, backFirst), func(t *testing.T) {
				sandbox := s.RunSandbox(t, "direct")
				defer sandbox.Remove(t)
				answer := s.Allocate(t, gpu, replica)
				replica++
				way.gone(t)
				id, err := sandbox.Create("main", answer)
				if backFirst {
					way.back(t)
				}
				if err == nil {
					err = sandbox.Start(id)
				}
				if !backFirst {
					way.back(t)
				}
				t.Logf("error of the creation or start: %v", err)
				if id != "" {
					state, stateErr := sandbox.State(id)
					if running := state == cri.ContainerState_CONTAINER_RUNNING; stateErr != nil || running != (err == nil) {
						t.Errorf("the container's state is %v, %v", state, stateErr)
					}
				}
				if err == nil {
					sandbox.MustHave(t, id, gpu.Index)
				}
				s.WaitPlugin(t)
				var again string
				bed.Eventually(t, 20*time.Second, "the container starts", func() (err error) {
					if again, err = sandbox.Create("main", answer); err != nil {
						return err
					}
					return sandbox.Start(again)
				})
				sandbox.MustHave(t, again, gpu.Index)
			})
		}
	}
}

// testInterlockKubelet crashes a container while both programs are away. The
// kubelet was restarted since, and so does not call PreStartContainer.
func (s *suite) testInterlockKubelet(t *testing.T) {
	pod := s.Apply(t, bed.GPUPod("restarted", 1))
	s.WaitRunning(t, pod)
	before := s.Look(t, pod, "main")
	s.Advertiser.Kill(t)
	s.Plugin.Kill(t)
	s.Kubelet.Terminate(t)
	s.Kubelet.Start(t)
	s.WaitKubelet(t)
	// It admits the pod again, and refuses it if its container does not run then.
	s.WaitRunning(t, pod)
	mark := s.Kubelet.Mark()
	s.KillContainer(t, before)
	mustContain(t, "the event of a container with the interlock", s.WaitNotStarted(t, pod, "main", mark), allocation.InterlockMount)
	s.MustNotRun(t, pod)
	s.Plugin.Start(t)
	s.Advertiser.Start(t)
	s.WaitReady(t)
	s.Nudge(t, pod)
	s.WaitRunning(t, pod)
	s.MustHave(t, pod, "main", before.GPUs...)
}

// testPluginAway checks the events of pods while the plugin is down or hangs.
func (s *suite) testPluginAway(t *testing.T) {
	s.run(t, "plugin down: a pod with a GPU waits and says why, one without starts", func(t *testing.T) {
		running := s.Apply(t, bed.GPUPod("running", 1))
		s.WaitRunning(t, running)
		s.Plugin.Stop(t)
		mark := s.Kubelet.Mark()
		gpu := s.Apply(t, bed.GPUPod("waits", 1))
		plain := s.Apply(t, bed.Pod{Name: "plain", Containers: []bed.Container{{Name: "main"}}})
		s.WaitRunning(t, plain)
		s.MustHave(t, plain, "main")
		mustContain(t, "the event of a pod while the plugin is down", s.WaitNotStarted(t, gpu, "main", mark), "directx-nri")

		// A container that crashes meanwhile waits too.
		mark = s.Kubelet.Mark()
		view := s.Look(t, running, "main")
		s.KillContainer(t, view)
		mustContain(t, "the event of a crashed container while the plugin is down", s.WaitNotStarted(t, running, "main", mark), "directx-nri")
		s.MustNotRun(t, gpu)

		s.Plugin.Start(t)
		s.WaitPlugin(t)
		s.Nudge(t, gpu, running)
		s.WaitRunning(t, gpu, running)
		s.MustHave(t, gpu, "main", s.AssignedGPUs(t, gpu, "main")...)
		s.MustHave(t, running, "main", view.GPUs...)
	})

	s.run(t, "plugin frozen before a creation: the pod waits and starts by itself", func(t *testing.T) {
		s.Plugin.Freeze(t)
		mark := s.Kubelet.Mark()
		pod := s.Apply(t, bed.GPUPod("frozen", 1))
		mustContain(t, "the event of a pod while the plugin is frozen", s.WaitNotStarted(t, pod, "main", mark), "directx-nri")
		s.MustNotRun(t, pod)
		s.Plugin.Thaw(t)
		s.WaitRunning(t, pod)
		s.MustHave(t, pod, "main", s.AssignedGPUs(t, pod, "main")...)
	})
}

// TestInterlockByShim removes the runtime shim from a node whose pods it serves.
func TestInterlockByShim(t *testing.T) {
	s := &suite{inventory: bed.NewInventory(2, 1)}
	s.Node = bed.Start(t, bed.Options{
		NoKubelet: true, Shim: true, HandlerApart: true, NRIOff: true, Inventory: s.inventory, Config: "servedBy: shim\nreplicas: 4\n",
		Offered: map[string]int{bed.Display: 8, bed.Compute: 4},
	})
	s.ConfigureContainerd(t)
	s.Kubelet.Start(t)
	s.WaitKubelet(t)
	s.Advertiser.Start(t)
	s.WaitOffered(t)
	main := []bed.Container{{Name: "main", Display: 1, Compute: 1}}
	initialized := s.Apply(t, bed.Pod{
		Name: "initialized", Init: []bed.Container{{Name: "first", Display: 1, Script: "ls /dev/dxg[0-9]*"}}, Containers: main,
	})
	s.WaitRunning(t, initialized)
	s.MustHave(t, initialized, "main", s.AssignedGPUs(t, initialized, "main")...)
	// A restarted kubelet would allocate again for its init container, which has ended.
	s.Remove(t, initialized)
	pod := s.Apply(t, bed.Pod{Name: "served", Containers: main})
	s.WaitRunning(t, pod)
	gpus := s.AssignedGPUs(t, pod, "main")
	s.MustHave(t, pod, "main", gpus...)

	// A restarted kubelet does not call PreStartContainer.
	s.Advertiser.Kill(t)
	s.Kubelet.Terminate(t)
	s.Kubelet.Start(t)
	s.WaitKubelet(t)
	s.WaitRunning(t, pod)
	s.Crash(t, pod, "main")
	view := s.MustHave(t, pod, "main", gpus...)

	s.UnconfigureContainerd(t)
	mark := s.Kubelet.Mark()
	s.KillContainer(t, view)
	mustContain(t, "the event of a container without the shim", s.WaitNotStarted(t, pod, "main", mark), allocation.InterlockMount)
	s.MustNotRun(t, pod)
	s.CheckWitness(t)

	s.ConfigureContainerd(t)
	s.Advertiser.Start(t)
	s.WaitOffered(t)
	s.Nudge(t, pod)
	s.WaitRunning(t, pod)
	s.MustHave(t, pod, "main", gpus...)
}

// TestInterlockRuntimes records what low-level runtimes do with the interlock's
// mount: none starts the container, and the error names the mount.
func TestInterlockRuntimes(t *testing.T) {
	if reason := bed.SkipReason(); reason != "" {
		t.Skip(reason)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			bundle := t.TempDir()
			for _, dir := range []string{"bin", "proc", "dev", "sys"} {
				if err := os.MkdirAll(filepath.Join(bundle, "rootfs", dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if out, err := exec.Command("cp", busybox, filepath.Join(bundle, "rootfs/bin/sh")).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			run := func(interlock bool) (output string, err error) {
				bed.WriteBundleSpec(t, bundle, "echo it runs", interlock)
				// Debian 12's crun does not run with the mixed control groups of this machine.
				out, err := exec.Command("unshare", "--mount", "sh", "-c", `umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"`, "sh",
					runtime, "--root", t.TempDir(), "run", "--bundle", bundle, "interlock-"+runtime).CombinedOutput()
				return string(out), err
			}
			if out, err := run(false); err != nil || !strings.Contains(out, "it runs") {
				t.Fatalf("without the interlock: %v\n%s", err, out)
			}
			out, err := run(true)
			if err == nil || strings.Contains(out, "it runs") {
				t.Errorf("the container runs: %v", err)
			}
			mustContain(t, "the error of "+runtime, out, allocation.InterlockMount)
		})
	}
}
