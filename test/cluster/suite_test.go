//go:build e2e && linux

package cluster

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	node "directx-nri/test/bed"
	"directx-nri/test/cluster/bed"
)

// The release, and what it offers.
const (
	release   = "directx-nri"
	namespace = "directx-nri"
	chart     = "deployments/helm/directx-nri"
	manifests = "deployments/manifests"
	examples  = "deployments/examples/linux"
	daemonSet = "directx-nri-linux"

	display = node.Display
	compute = node.Compute
	t4      = "example.com/t4"
)

// timeout bounds how long a change may take to show. The kubelet alone waits for
// 10 to 15 seconds before it tries a failed container again.
const timeout = 4 * time.Minute

// suite is the cluster that the parts of TestCluster share.
type suite struct {
	*bed.Cluster
	images *images
	// before is what the node was like before anything was installed.
	before map[string]string
	// bystander is the life of a pod that has nothing to do with any of it.
	bystander lives
	// holders are the lives of the pods that hold all display GPUs, as long as there
	// are any.
	holders lives
	failed  bool
}

func newSuite(t *testing.T) *suite {
	t.Helper()
	built := buildImages(t)
	s := &suite{Cluster: bed.Start(t), images: built}
	s.ImportImage(t, built.older.archive(t))
	s.Apply(t, pod("bystander", forever, nil))
	s.waitRunning(t, "bystander")
	s.bystander = s.lives(t, "bystander")
	s.before = s.Files(t)
	return s
}

// run runs one part. A part that failed ends the suite: what comes after builds on
// it.
func (s *suite) run(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	if s.failed {
		return
	}
	s.failed = !t.Run(name, func(t *testing.T) {
		defer func() {
			if t.Failed() {
				s.Dump(t, namespace, "default")
			}
		}()
		test(t)
		s.mustGoOn(t)
	})
}

// forever waits until it is told to end, and then ends at once.
const forever = "trap 'exit 0' TERM; sleep 2147483647 & wait"

// pod is the manifest of a pod of one container.
func pod(name, script string, limits map[string]int, env ...string) string {
	var lines []string
	for _, resource := range slices.Sorted(maps.Keys(limits)) {
		lines = append(lines, fmt.Sprintf("%s: %d", resource, limits[resource]))
	}
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 5
  containers:
    - name: main
      image: %s
      command: [sh, -c, %q]
      env: [%s]
      resources: {limits: {%s}}
`, name, bed.BusyboxImage, script, strings.Join(env, ", "), strings.Join(lines, ", "))
}

// waitRunning waits until pods of the default namespace run.
func (s *suite) waitRunning(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		node.Eventually(t, timeout, "pod "+name+" runs", func() error {
			pod, err := s.Pod("default", name)
			if err != nil {
				return err
			}
			return running(pod)
		})
	}
}

func running(pod corev1.Pod) error {
	if pod.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("it is %s: %s", pod.Status.Phase, states(pod))
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running == nil {
			return errors.New(states(pod))
		}
	}
	return nil
}

// states says what a pod's containers do.
func states(pod corev1.Pod) string {
	var parts []string
	for _, c := range pod.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			parts = append(parts, c.Message)
		}
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case c.State.Waiting != nil:
			parts = append(parts, fmt.Sprintf("%s waits (%s %s)", c.Name, c.State.Waiting.Reason, c.State.Waiting.Message))
		case c.State.Terminated != nil:
			parts = append(parts, fmt.Sprintf("%s ended with %d (%s %s)", c.Name, c.State.Terminated.ExitCode, c.State.Terminated.Reason, c.State.Terminated.Message))
		}
	}
	return strings.Join(parts, "; ")
}

// remove deletes pods of the default namespace and waits until they are gone.
func (s *suite) remove(t testing.TB, names ...string) {
	t.Helper()
	if len(names) > 0 {
		s.Kubectl(t, append([]string{"delete", "pod", "--wait", "--ignore-not-found"}, names...)...)
	}
}

// lives tells for each container of some pods which one it is, since when it runs,
// and which GPUs it has and can open.
type lives map[string]string

// useGPUs prints what a container is told of its GPUs, and opens them.
const useGPUs = `echo "$DIRECTX_DEVICES"; for node in /dev/dxg*; do if test -e "$node"; then true < "$node" && echo "$node" || exit 1; fi; done`

func (s *suite) lives(t testing.TB, names ...string) lives {
	t.Helper()
	found := make(lives)
	for _, name := range names {
		pod, err := s.Pod("default", name)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Running == nil {
				t.Fatalf("container %s of pod %s does not run: %s", c.Name, name, states(pod))
			}
			// What the API server tells may be old: the container itself is asked.
			gpus, err := s.Exec(c.ContainerID, useGPUs)
			if err != nil {
				t.Fatalf("pod %s: %v", name, err)
			}
			found[name+"/"+c.Name] = fmt.Sprintf("%s since %s, %d restarts, GPUs: %s", c.ContainerID, c.State.Running.StartedAt, c.RestartCount, gpus)
		}
	}
	return found
}

// mustGoOn fails the test unless the bystander and the holders of GPUs are those
// that they always were, and have what they had.
func (s *suite) mustGoOn(t testing.TB) {
	t.Helper()
	for _, before := range []lives{s.bystander, s.holders} {
		var names []string
		for key := range before {
			name, _, _ := strings.Cut(key, "/")
			names = append(names, name)
		}
		if diff := cmp.Diff(before, s.lives(t, names...)); len(before) > 0 && diff != "" {
			t.Errorf("running pods were disturbed (-before +after):\n%s", diff)
		}
	}
}

// waitOffered waits until the node offers so many of the resources.
func (s *suite) waitOffered(t testing.TB, want map[string]int) {
	t.Helper()
	took := node.Eventually(t, timeout, fmt.Sprintf("the node offers %v", want), func() error {
		n, err := s.Node(bed.NodeName)
		if err != nil {
			return err
		}
		for resource, count := range want {
			quantity := n.Status.Allocatable[corev1.ResourceName(resource)]
			if quantity.Value() != int64(count) {
				return fmt.Errorf("allocatable %s is %s", resource, quantity.String())
			}
		}
		return nil
	})
	t.Logf("after %v the node offers %v", took.Round(time.Millisecond), want)
}

// helmUpgrade installs or upgrades the release, and waits for nothing.
func (s *suite) helmUpgrade(t testing.TB, flags ...string) {
	t.Helper()
	s.Helm(t, append([]string{"upgrade", "--install", release, chart, "--namespace", namespace}, flags...)...)
}

// rolledOut waits until the pods of a DaemonSet are those of its present template,
// and ready.
func (s *suite) rolledOut(t testing.TB, name string) {
	t.Helper()
	s.Kubectl(t, "rollout", "status", "daemonset/"+name, "--namespace", namespace, "--timeout", timeout.String())
}

// ourPod returns the one pod of a DaemonSet.
func (s *suite) ourPod(t testing.TB, daemonSet string) corev1.Pod {
	t.Helper()
	var found corev1.Pod
	node.Eventually(t, timeout, "DaemonSet "+daemonSet+" has one pod", func() error {
		pods, err := s.Pods(namespace)
		if err != nil {
			return err
		}
		count := 0
		for _, pod := range pods {
			if len(pod.OwnerReferences) == 1 && pod.OwnerReferences[0].Name == daemonSet {
				found = pod
				count++
			}
		}
		if count != 1 {
			return fmt.Errorf("it has %d", count)
		}
		return nil
	})
	return found
}

// values writes a file of values for helm and returns its path.
func (s *suite) values(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	bed.WriteFile(t, path, content)
	return path
}

func mustRead(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func mustContain(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s does not say %q:\n%s", what, part, text)
		}
	}
}

// applyWithImage applies a manifest with the suite's image in place of the one that
// it names.
func (s *suite) applyWithImage(t testing.TB, path string) {
	t.Helper()
	s.Apply(t, imageLine.ReplaceAllString(mustRead(t, filepath.Join(s.Parts.Root, path)), "${1}"+repository+":"+s.images.older.version))
}

var imageLine = regexp.MustCompile(`(?m)^(\s*(?:- )?image: ).*directx-nri.*$`)
