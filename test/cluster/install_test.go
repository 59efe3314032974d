//go:build e2e && linux

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"directx-nri/internal/readiness"
	node "directx-nri/test/bed"
	"directx-nri/test/cluster/bed"
)

// install installs the chart with the examples' values and waits until the node
// offers what they say.
func (s *suite) install(t *testing.T, flags ...string) {
	t.Helper()
	s.Kubectl(t, "apply", "--filename", manifests+"/namespace.yaml")
	s.helmUpgrade(t, append([]string{
		"--values", examples + "/values.yaml", "--set", "image.repository=" + repository, "--set", "image.tag=" + s.images.older.version,
	}, flags...)...)
	s.rolledOut(t, daemonSet)
	s.waitOffered(t, offered)
}

// offered is what the examples' values make the node offer.
var offered = map[string]int{display: 8, compute: 4, t4: 4}

func (s *suite) testInstall(t *testing.T) {
	if old := mustRead(t, bed.ContainerdConfig); strings.Contains(old, "nri") {
		t.Fatalf("NRI is on before the chart is installed:\n%s", old)
	}
	s.install(t)
	t.Log(s.Kubectl(t, "get", "node", bed.NodeName, "--output", `jsonpath={.status.allocatable}`))
	t.Log(mustRead(t, bed.ContainerdConfig))
	mustContain(t, "containerd's log", s.Containerd.Log(0), "supervisor: containerd ended")
	if status := s.ourPod(t, daemonSet).Status; restarts(status) > 0 {
		t.Errorf("containers of the DaemonSet's pod were started again: %v", status.ContainerStatuses)
	}
}

func restarts(status corev1.PodStatus) int {
	count := 0
	for _, c := range append(status.InitContainerStatuses, status.ContainerStatuses...) {
		count += int(c.RestartCount)
	}
	return count
}

// testExamples applies each example for Linux as it is, and compares what its pods
// print with what is written beside it. All run beside each other.
func (s *suite) testExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(s.Parts.Root, examples, "*.expected.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	manifest := func(expected string) string { return strings.TrimSuffix(expected, ".expected.txt") + ".yaml" }
	// Jobs come when the pods have their GPUs: one of them asks for two apart.
	var apart, jobs []string
	for _, file := range files {
		if strings.Contains(mustRead(t, manifest(file)), "kind: Job") {
			jobs = append(jobs, "--filename", manifest(file))
		} else {
			apart = append(apart, "--filename", manifest(file))
		}
	}
	t.Cleanup(func() {
		s.Kubectl(t, slices.Concat([]string{"delete", "--wait", "--ignore-not-found"}, apart, jobs)...)
	})
	s.Kubectl(t, append([]string{"apply"}, apart...)...)
	node.Eventually(t, timeout, "the pods have their GPUs", func() error {
		pods, err := s.Pods("default")
		for _, pod := range pods {
			if pod.Status.Phase == corev1.PodPending {
				err = fmt.Errorf("pod %s waits: %s", pod.Name, states(pod))
			}
		}
		return err
	})
	s.Kubectl(t, append([]string{"apply"}, jobs...)...)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".expected.txt"), func(t *testing.T) {
			want := mustRead(t, file)
			for _, pod := range s.waitDone(t, strings.Fields(s.Kubectl(t, "get", "--filename", manifest(file), "--output", "name"))) {
				got := s.Kubectl(t, "logs", pod)
				if err := matches(want, got); err != nil {
					t.Errorf("pod %s: %v. It printed:\n%s\nexpected:\n%s", pod, err, got, want)
				}
			}
		})
	}
}

// waitDone waits until an example's objects, pods and Jobs, have succeeded, and
// returns the names of the pods.
func (s *suite) waitDone(t testing.TB, objects []string) []string {
	t.Helper()
	var names []string
	for _, object := range objects {
		kind, name, _ := strings.Cut(object, "/")
		var job struct {
			Spec struct{ Completions int }
		}
		if kind == "job.batch" {
			if err := s.Get("/apis/batch/v1/namespaces/default/jobs/"+name, &job); err != nil {
				t.Fatal(err)
			}
		}
		var done []string
		node.Eventually(t, timeout, object+" succeeds", func() error {
			pods, err := s.Pods("default")
			if err != nil {
				return err
			}
			done = nil
			for _, pod := range pods {
				switch {
				case pod.Name != name && pod.Labels["job-name"] != name:
				case pod.Status.Phase == corev1.PodFailed:
					t.Fatalf("pod %s failed: %s %s %s", pod.Name, pod.Status.Reason, pod.Status.Message, states(pod))
				case pod.Status.Phase == corev1.PodSucceeded:
					done = append(done, pod.Name)
				default:
					err = fmt.Errorf("pod %s is %s: %s", pod.Name, pod.Status.Phase, states(pod))
				}
			}
			if want := max(1, job.Spec.Completions); err == nil && len(done) != want {
				err = fmt.Errorf("%d of its %d pods have succeeded", len(done), want)
			}
			return err
		})
		names = append(names, done...)
	}
	return names
}

// matches compares an output with the expected one, line by line: * stands for any
// characters, ? for one, and a last line of * alone for one or more lines.
func matches(want, got string) error {
	wants, gots := strings.Split(strings.TrimRight(want, "\n"), "\n"), strings.Split(strings.TrimRight(got, "\n"), "\n")
	for i, line := range wants {
		last := i == len(wants)-1
		switch {
		case i >= len(gots):
			return fmt.Errorf("line %d is missing: %s", i+1, line)
		case last && line == "*":
			return nil
		case !like(line, gots[i]):
			return fmt.Errorf("line %d is not like %q", i+1, line)
		}
	}
	if len(gots) > len(wants) {
		return fmt.Errorf("there are %d lines too many", len(gots)-len(wants))
	}
	return nil
}

// like tells whether text is what a pattern with * and ? stands for.
func like(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return like(pattern[1:], text) || text != "" && like(pattern, text[1:])
	case text == "":
		return false
	}
	return (pattern[0] == '?' || pattern[0] == text[0]) && like(pattern[1:], text[1:])
}

// holders are the pods that hold all display GPUs.
func holders() []string {
	var names []string
	for i := range offered[display] {
		names = append(names, fmt.Sprintf("holder-%d", i))
	}
	return names
}

// testPending leaves pods that run on all display GPUs.
func (s *suite) testPending(t *testing.T) {
	var all string
	for _, name := range holders() {
		all += pod(name, forever, map[string]int{display: 1})
	}
	s.Apply(t, all)
	s.waitRunning(t, holders()...)

	s.Apply(t, pod("ninth", forever, map[string]int{display: 1}))
	node.Eventually(t, timeout, "the ninth pod waits for a GPU", func() error {
		pod, err := s.Pod("default", "ninth")
		if err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, "Insufficient "+display) {
				t.Log(c.Message)
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", pod.Status.Conditions)
	})
	node.Never(t, 2*time.Second, "the ninth pod runs", func() error {
		pod, err := s.Pod("default", "ninth")
		if err == nil && pod.Status.Phase != corev1.PodPending {
			err = fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return err
	})
	s.remove(t, "holder-0")
	s.waitRunning(t, "ninth")
	s.remove(t, "ninth")
	s.Apply(t, pod("holder-0", forever, map[string]int{display: 1}))
	s.waitRunning(t, "holder-0")
	s.holders = s.lives(t, holders()...)
	for name, life := range s.holders {
		mustContain(t, name, life, "PCIROOT", "/dev/dxg")
	}
}

// testRefused starts pods that must not start, and reads what a user reads.
func (s *suite) testRefused(t *testing.T) {
	s.Apply(t, pod("made-up", forever, nil, `{name: DIRECTX_ALLOCATION_0, value: "00000000000000000000000000000000"}`))
	t.Cleanup(func() { s.remove(t, "made-up") })
	s.mustSayWhy(t, "made-up", "DIRECTX_ALLOCATION_0")

	t.Cleanup(func() { s.remove(t, "no-plugin") })
	s.withoutPlugin(t, func() {
		s.Apply(t, pod("no-plugin", forever, map[string]int{compute: 1}))
		s.mustSayWhy(t, "no-plugin", "not started without its GPU")
	})
}

// withoutPlugin ends the NRI plugin, which the kubelet starts again, and keeps it
// from finding containerd until f returns.
func (s *suite) withoutPlugin(t *testing.T, f func()) {
	t.Helper()
	const socket, away = "/run/nri/nri.sock", "/run/nri/away.sock"
	rename := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	pid := node.FindProcess("directx-nri")
	if pid == 0 {
		t.Fatal("no plugin runs")
	}
	rename(socket, away)
	defer func() {
		rename(away, socket)
		node.Eventually(t, timeout, "the plugin is back", func() error {
			return readiness.Check(t.Context(), filepath.Join("/run/directx-nri", readiness.SocketName))
		})
	}()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill the plugin: %v", err)
	}
	f()
}

// mustSayWhy waits until the events of a pod say why it does not start.
func (s *suite) mustSayWhy(t *testing.T, name, words string) {
	t.Helper()
	node.Eventually(t, timeout, "kubectl describe says why pod "+name+" does not start", func() error {
		if pod, err := s.Pod("default", name); err != nil || running(pod) == nil {
			t.Fatalf("pod %s runs (%v)", name, err)
		}
		text := s.Kubectl(t, "describe", "pod", name)
		for line := range strings.Lines(text) {
			if strings.Contains(line, words) && strings.Contains(line, "Failed") {
				t.Log(strings.TrimSpace(line))
				return nil
			}
		}
		return fmt.Errorf("it says:\n%s", text)
	})
}
