//go:build e2e && linux

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/test/bed"
)

// TestConcurrentPods starts pods at once. The kubelet of Windows allocates in the workers of
// the pods, and one allocation during another crashes it (kubernetes#136021). The
// advertiser prevents almost all of that: without it, the kubelet crashes once to three
// times for eight pods. Should it crash, a service manager starts it again. Every pod must
// run with its GPU in the end. With the feature gate the order is that of Linux, and nothing crashes.
func TestConcurrentPods(t *testing.T) {
	for affinity, most := range map[bool]int{false: 1, true: 0} {
		t.Run(fmt.Sprint("affinity ", affinity), func(t *testing.T) {
			s := start(t, bed.Options{WindowsKubelet: true, Affinity: affinity, Replicas: 8, Inventory: bed.NewInventory(2, 0)})
			crashes := 0
			for range 2 {
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
			if crashes > most {
				t.Error(s.Kubelet.Tail(60))
			}
		})
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
