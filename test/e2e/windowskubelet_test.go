//go:build e2e && linux

package e2e

import (
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/test/bed"
)

// TestWindowsKubelet runs the parts of [TestNode] under a kubelet that allocates when it
// creates a container, as on Windows up to Kubernetes 1.37.
func TestWindowsKubelet(t *testing.T) {
	s := start(t, bed.Options{WindowsKubelet: true, Replicas: 4, Inventory: bed.NewInventory(2, 1)})
	t.Run("1 a pod gets its device", s.testDevices)
	t.Run("2 GPUs are shared fairly", s.testSharing)
	t.Run("3 restarts change nothing", s.testRestarts)
	t.Run("5 an allocation grants what it is for", s.testAllocated)
	t.Run("6 GPUs come and go", s.testHotplug)
	t.Run("7 records survive", s.testRecords)
}

// TestConcurrentPods starts pods at once. The kubelet of Windows allocates in the workers of
// the pods, and one allocation during another crashes it (kubernetes#136021). The
// advertiser prevents almost all of that: without it, the kubelet crashes once to three
// times for eight pods. Should it crash, a service manager starts it again. Every pod must
// run with its GPU in the end.
func TestConcurrentPods(t *testing.T) {
	s := start(t, bed.Options{WindowsKubelet: true, Replicas: 8, Inventory: bed.NewInventory(2, 0)})
	const rounds = 2
	crashes := 0
	for range rounds {
		var pods []string
		for range 6 {
			pods = append(pods, s.Apply(t, bed.GPUPod("at-once", 1)))
		}
		for _, pod := range pods {
			bed.Eventually(t, 2*time.Minute, "pod "+pod+" runs", func() error {
				if !s.Kubelet.Running() {
					crashes++
					s.Kubelet.Start(t)
					s.WaitKubelet(t)
				}
				status, err := s.Status(pod)
				if err != nil {
					return err
				}
				return status.Running()
			})
		}
		s.WaitServed(t, pods...)
		holders := map[string]string{}
		for _, h := range s.Held(t) {
			if other := holders[h.Replica]; other != "" {
				t.Errorf("pods %s and %s hold %s", other, h.Pod, h.Replica)
			}
			holders[h.Replica] = h.Pod
		}
		s.Remove(t, pods...)
	}
	t.Logf("the kubelet crashed %d times", crashes)
	if crashes > 1 {
		t.Error(s.Kubelet.Tail(60))
	}
}

// TestWindowsKubeletInjection: with injection: kubelet, only one resource is offered.
func TestWindowsKubeletInjection(t *testing.T) {
	s := start(t, bed.Options{
		WindowsKubelet: true, NRIOff: true, Replicas: 4, Inventory: bed.NewInventory(2, 1), Config: "injection: kubelet",
		Offered: map[string]int{bed.Display: 8},
	})
	bed.MustContain(t, "the advertiser's log", s.Advertiser.Log(0), "GPUs of one resource, which is "+bed.Display)
	pod := s.RunPod(t, bed.GPUPod("injected", 2))
	s.mustBeInjected(t, pod)
	s.Crash(t, pod, "main")
	s.mustBeInjected(t, pod)
	if offered, _ := s.Allocatable(); offered[bed.Compute] > 0 {
		t.Errorf("the kubelet offers %v", offered)
	}
}

// TestWindowsKubeletAffinity: with the feature gate the order is that of Linux, and pods can
// start at once.
func TestWindowsKubeletAffinity(t *testing.T) {
	s := start(t, bed.Options{WindowsKubelet: true, Affinity: true, Replicas: 8, Inventory: bed.NewInventory(2, 0)})
	var pods []string
	for range 8 {
		pods = append(pods, s.Apply(t, bed.GPUPod("at-once", 1)))
	}
	s.WaitServed(t, pods...)

	s.Part(t, "the plugin is down", func(t *testing.T) {
		s.Plugin.Stop(t)
		mark := s.Kubelet.Mark()
		s.KillContainer(t, s.Look(t, pods[0], "main"))
		bed.MustContain(t, "the event of a crashed container", s.WaitNotStarted(t, pods[0], "main", mark), "directx-nri")
		s.Plugin.Start(t)
		s.WaitPlugin(t)
		s.SyncPods(t, pods[0])
		s.WaitServed(t, pods[0])
	})
}
