//go:build e2e && linux

package cluster

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// featureFile is where the chart lets node-feature-discovery read labels.
const featureFile = "/etc/kubernetes/node-feature-discovery/features.d/directx-nri"

func TestMain(m *testing.M) {
	if bed.RunDir() != "" { // In the run's mount namespace.
		if err := bed.OwnDev(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(bed.Suite{
		Dirs: []bed.Dir{
			{Path: "/etc", Copy: true}, {Path: "/run"}, {Path: binDir}, {Path: "/var/lib"}, {Path: "/var/log"},
			{Path: wsl}, {Path: "/opt/containerd"}, {Path: "/opt/nri"}, // Not /opt, which may have Go.
		},
		Check: checkParts,
	}.Main(m))
}

// checkParts returns an error if a program is missing on this machine.
func checkParts(p bed.Parts) error {
	if err := p.CheckNode(); err != nil {
		return err
	}
	for _, name := range []string{etcd, apiServer, controllerManager, scheduler, kubectl, helm} {
		if err := p.CheckStock(name, "cluster"); err != nil {
			return err
		}
	}
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		if _, err := os.Stat(filepath.Join(cniPlugins, name)); err != nil {
			return fmt.Errorf("missing CNI plugin: run test/parts/build.sh cluster as root, or install the package containernetworking-plugins (%w)", err)
		}
	}
	return nil
}

// TestCluster takes one cluster through the life of a release. Each part continues with
// the cluster as the one before left it.
func TestCluster(t *testing.T) {
	s := newSuite(t)
	s.part(t, "1 a node without a GPU is left as it is until it has one", s.testNoGPU)
	s.part(t, "2 the chart makes a node offer its GPUs", s.testInstall)
	s.part(t, "3 the examples print the expected output", s.testExamples)
	s.part(t, "4 a pod waits for a free GPU", s.testPending)
	s.part(t, "5 a pod does not start without its GPU", s.testRefused)
	s.part(t, "6 a changed configuration does not affect running pods", s.testConfigChange)
	s.part(t, "7 an invalid configuration has no effect", s.testBadConfig)
	s.part(t, "8 an upgrade and a rollback do not affect running pods", s.testRollback)
	s.part(t, "9 a node's label selects its configuration", s.testPools)
	s.part(t, "10 helm uninstall leaves the node as it was", s.testUninstall)
	s.part(t, "11 Windows nodes are selected by build and pool", s.testWindows)
}

const (
	release   = "directx-nri"
	namespace = "directx-nri"
	chart     = "deployments/helm/directx-nri"
	examples  = "deployments/examples/linux"
	daemonSet = "directx-nri-linux"

	display = bed.Display
	compute = bed.Compute
	t4      = "example.com/t4"
	npu     = "example.com/npu"
)

// timeout bounds the effect of a change. The kubelet alone waits 10 to 15 seconds before
// it creates a failed container again.
const timeout = 4 * time.Minute

// suite is the state that the parts of TestCluster share.
type suite struct {
	*machine
	// before has the node's files before the installation.
	before []string
	// bystander describes a pod without a GPU, which nothing may affect.
	bystander containers
	// holders describes the pods that hold all display GPUs, if there are any.
	holders containers
	failed  bool
}

func newSuite(t *testing.T) *suite {
	t.Helper()
	s := &suite{machine: startMachine(t)}
	s.startRegistry(t)
	s.publish(t, older)
	s.apply(t, podManifest("bystander", bed.Wait, nil))
	s.waitRunning(t, "bystander")
	s.bystander = s.containers(t, "bystander")
	testutil.NoError(t, os.MkdirAll(filepath.Dir(featureFile), 0o755)) // The kubelet would make it, and leave it.
	s.before = s.files(t)
	return s
}

// part runs a part. A failed part ends the suite.
func (s *suite) part(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	if s.failed {
		return
	}
	s.failed = !t.Run(name, func(t *testing.T) {
		defer func() {
			if t.Failed() {
				s.dump(t, namespace, "default")
			}
		}()
		test(t)
		s.mustBeUnaffected(t)
	})
}

// podManifest returns the manifest of a pod with one container.
func podManifest(name, script string, limits map[string]int, env ...string) string {
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
`, name, busyboxImage, script, strings.Join(env, ", "), strings.Join(lines, ", "))
}

// waitRunning waits until pods run.
func (s *suite) waitRunning(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		bed.Eventually(t, timeout, "pod "+name+" runs", func() error {
			pod, err := s.pod(name)
			if err != nil {
				return err
			}
			if err := pod.Running(); err != nil {
				return fmt.Errorf("%w: %v", err, pod)
			}
			return nil
		})
	}
}

// remove deletes pods and waits until they are gone.
func (s *suite) remove(t testing.TB, names ...string) {
	t.Helper()
	s.kubectl(t, append([]string{"delete", "pod", "--wait", "--ignore-not-found"}, names...)...)
}

// containers describes containers by POD/CONTAINER: their IDs, start times, and GPUs.
type containers map[string]string

// useGPUs prints the GPUs of a container and opens their device nodes.
const useGPUs = `echo "$DIRECTX_DEVICES"; for node in /dev/dxg*; do if test -e "$node"; then true < "$node" && echo "$node" || exit 1; fi; done`

// containers describes the containers of pods, all of which must run.
func (s *suite) containers(t testing.TB, names ...string) containers {
	t.Helper()
	found := make(containers)
	for _, name := range names {
		pod, err := s.pod(name)
		testutil.NoError(t, err)
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Running == nil {
				t.Fatalf("container %s of pod %s does not run: %v", c.Name, name, pod)
			}
			gpus, status := bed.Exec(t, s.cri, strings.TrimPrefix(c.ContainerID, "containerd://"), useGPUs)
			if status != 0 {
				t.Fatalf("pod %s cannot open its GPUs: %s", name, gpus)
			}
			found[name+"/"+c.Name] = fmt.Sprintf("%s since %s, %d restarts, GPUs: %s", c.ContainerID, c.State.Running.StartedAt, c.RestartCount, gpus)
		}
	}
	return found
}

// mustBeUnaffected fails the test unless the containers of the bystander and of the
// holders are the same as before.
func (s *suite) mustBeUnaffected(t testing.TB) {
	t.Helper()
	for _, before := range []containers{s.bystander, s.holders} {
		var names []string
		for key := range before {
			names = append(names, strings.TrimSuffix(key, "/main"))
		}
		if diff := cmp.Diff(before, s.containers(t, names...)); len(before) > 0 && diff != "" {
			t.Errorf("running pods were affected (-before +after):\n%s", diff)
		}
	}
}

// waitOffered waits until the node offers these numbers of resources.
func (s *suite) waitOffered(t testing.TB, want map[string]int) {
	t.Helper()
	took := bed.Eventually(t, timeout, fmt.Sprintf("the node offers %v", want), func() error {
		var n corev1.Node
		if err := s.api.Get("/api/v1/nodes/"+nodeName, &n); err != nil {
			return err
		}
		for resource, count := range want {
			if quantity := n.Status.Allocatable[corev1.ResourceName(resource)]; quantity.Value() != int64(count) {
				return fmt.Errorf("allocatable %s is %s", resource, quantity.String())
			}
		}
		return nil
	})
	t.Logf("after %v the node offers %v", took.Round(time.Millisecond), want)
}

// helmUpgrade installs or upgrades the release without waiting for pods, and returns the chart's notes.
func (s *suite) helmUpgrade(t testing.TB, flags ...string) string {
	t.Helper()
	return s.helm(t, append([]string{"upgrade", "--install", release, chart, "--namespace", namespace}, flags...)...)
}

// rolledOut waits until the pods of a DaemonSet have its current template and are ready.
func (s *suite) rolledOut(t testing.TB, name string) {
	t.Helper()
	s.kubectl(t, "rollout", "status", "daemonset/"+name, "--namespace", namespace, "--timeout", timeout.String())
}

// podOf waits until a DaemonSet has exactly one pod, and returns it.
func (s *suite) podOf(t testing.TB, daemonSet string) bed.Status {
	t.Helper()
	var found []bed.Status
	bed.Eventually(t, timeout, "DaemonSet "+daemonSet+" has one pod", func() error {
		pods, err := s.pods(namespace)
		if err != nil {
			return err
		}
		found = slices.DeleteFunc(pods, func(pod bed.Status) bool {
			return len(pod.OwnerReferences) != 1 || pod.OwnerReferences[0].Name != daemonSet
		})
		if len(found) != 1 {
			return fmt.Errorf("it has %d", len(found))
		}
		return nil
	})
	return found[0]
}

func restarts(status corev1.PodStatus) int {
	count := 0
	for _, c := range slices.Concat(status.InitContainerStatuses, status.ContainerStatuses) {
		count += int(c.RestartCount)
	}
	return count
}

// mustBeSame fails the test unless the DaemonSet's pod is the same and none of its
// containers has restarted.
func (s *suite) mustBeSame(t *testing.T, before bed.Status) {
	t.Helper()
	if now := s.podOf(t, daemonSet); now.UID != before.UID || restarts(now.Status) != restarts(before.Status) {
		t.Errorf("the DaemonSet's pod was %s with %d restarts and is %s with %d", before.Name, restarts(before.Status), now.Name, restarts(now.Status))
	}
}

// mustGiveGPUs fails the test unless a new pod gets a device of each resource.
func (s *suite) mustGiveGPUs(t *testing.T, resources ...string) {
	t.Helper()
	for _, resource := range resources {
		name := "new-" + resource[strings.LastIndex(resource, "/")+1:]
		s.apply(t, podManifest(name, "ls /dev/dxg* && "+bed.Wait, map[string]int{resource: 1}))
		s.waitRunning(t, name)
		bed.MustContain(t, "pod "+name, s.containers(t, name)[name+"/main"], "PCIROOT", "/dev/dxg")
		s.remove(t, name)
	}
}

// values writes a values file and returns its path.
func (s *suite) values(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	bed.WriteFile(t, path, content, 0o644)
	return path
}

func mustRead(t testing.TB, path string) string {
	t.Helper()
	return string(bed.ReadFile(t, path))
}
