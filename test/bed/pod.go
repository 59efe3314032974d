//go:build e2e && linux

package bed

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// podTimeout bounds how long a pod may take to start or to end. The kubelet
// alone waits for 10 to 15 seconds before it tries a failed container again.
const podTimeout = 90 * time.Second

// Pod is a pod to run. Its name is made unique on the node.
type Pod struct {
	Name        string
	Annotations map[string]string
	Init        []Container
	Containers  []Container
}

// Container is one container of a pod.
type Container struct {
	Name             string
	Display, Compute int // how many GPUs it requests
	// Resources are further extended resources that it requests.
	Resources map[string]int
	Env       map[string]string
	// Image is another image than [Image].
	Image string
	// SubPathExpr is that of a further mount.
	SubPathExpr string
	// Script is what it runs with sh -c. By default it waits until it is terminated,
	// and first writes to the node's report directory if it requests a GPU and has
	// none.
	Script string
}

// Wait waits until the container is terminated, and then ends at once.
const Wait = "trap 'exit 0' TERM; sleep 2147483647 & wait"

// Containers that run without a GPU that they requested write their name into a
// file of the node.
const (
	reportDir        = "/reports"
	missingGPUFile   = "without-gpu"
	reportMissingGPU = "ls /dev/dxg* >/dev/null 2>&1 || echo \"$0\" >>" + reportDir + "/" + missingGPUFile + "\n"
)

// CheckMissingGPUs fails the test if a container ran without the GPU that it requested
// at any time since the node's start. A static pod that was deleted before is a known limit.
func (n *Node) CheckMissingGPUs(t testing.TB) {
	t.Helper()
	names, err := os.ReadFile(filepath.Join(n.reports, missingGPUFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	log := n.Kubelet.Log(0)
	for _, name := range strings.Fields(string(names)) {
		pod, container, _ := strings.Cut(name, "/")
		removed := strings.Index(log, fmt.Sprintf(`"SyncLoop REMOVE" source="file" pods=["default/%s"]`, n.podName(pod)))
		if removed < 0 || !slices.ContainsFunc(n.EventsSince(pod, Mark(removed)), func(e Event) bool {
			return e.Reason == "Started" && strings.Contains(e.Object, "{"+container+"}")
		}) {
			t.Errorf("container %s ran without its GPU", name)
		}
	}
}

// GPUPod returns a pod of one container, "main", that requests display GPUs.
func GPUPod(name string, display int) Pod {
	return Pod{Name: name, Containers: []Container{{Name: "main", Display: display}}}
}

// ResourcePod returns a pod of one container, "main", that requests GPUs of a resource.
func ResourcePod(name, resource string, count int) Pod {
	return Pod{Name: name, Containers: []Container{{Name: "main", Resources: map[string]int{resource: count}}}}
}

// podName is a pod's name in the kubelet, which extends those of static pods.
func (n *Node) podName(pod string) string {
	if n.APIPods {
		return pod
	}
	return pod + "-" + Name
}

// Apply hands a pod to the kubelet and returns its name. The pod is removed
// when the test ends.
func (n *Node) Apply(t testing.TB, pod Pod) string {
	t.Helper()
	n.nextPod++
	name := fmt.Sprintf("%s-%d", pod.Name, n.nextPod)
	n.applied[name] = &applied{Pod: pod, t: t, uid: fmt.Sprintf("00000000-0000-4000-8000-%012d", n.nextPod)}
	n.hand(t, name)
	t.Cleanup(func() {
		for other, a := range n.applied {
			if a.t == t {
				n.Delete(t, other) // All at once; each has a clean-up that waits for its end.
			}
		}
		n.Remove(t, name)
		delete(n.applied, name)
	})
	return name
}

// applied is a pod that was handed to the kubelet.
type applied struct {
	Pod
	t      testing.TB
	uid    string
	nudges int
}

// SyncPods makes the kubelet sync pods now, as any change of them does, instead of 10 to 15
// seconds after a failure.
func (n *Node) SyncPods(t testing.TB, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		n.applied[pod].nudges++
		n.hand(t, pod)
	}
}

// Annotate replaces the annotations of a pod. Its sandbox, if it has one, keeps those that it was made with.
func (n *Node) Annotate(t testing.TB, pod string, annotations map[string]string) {
	t.Helper()
	n.applied[pod].Annotations = annotations
	n.SyncPods(t, pod)
}

// podsPath is where the API server has the pods.
const podsPath = "/api/v1/namespaces/default/pods"

// hand gives a pod to the kubelet or the API server.
func (n *Node) hand(t testing.TB, name string) {
	t.Helper()
	pod := n.applied[name]
	annotations := map[string]string{"test/nudges": fmt.Sprint(pod.nudges)}
	maps.Copy(annotations, pod.Annotations)
	spec := map[string]any{
		"nodeName":                      Name,
		"hostNetwork":                   true,
		"restartPolicy":                 "Always",
		"terminationGracePeriodSeconds": 1,
		"enableServiceLinks":            false,
		"containers":                    containerSpecs(name, pod.Containers),
		"volumes":                       []map[string]any{{"name": "reports", "hostPath": map[string]string{"path": n.reports}}},
	}
	if len(pod.Init) > 0 {
		spec["initContainers"] = containerSpecs(name, pod.Init)
	}
	manifest := map[string]any{
		"apiVersion": "v1",
		"kind":       "Pod",
		// Without a UID here the kubelet makes one of the file's content, and
		// a nudge would make it another pod. The API server replaces it.
		"metadata": map[string]any{"name": name, "namespace": "default", "uid": pod.uid, "annotations": annotations},
		"spec":     spec,
	}
	switch {
	case !n.APIPods:
		data, err := json.Marshal(manifest)
		testutil.NoError(t, err)
		WriteFile(t, n.manifest(name), string(data), 0o644)
	case pod.nudges == 0:
		testutil.NoError(t, n.API.do(http.MethodPost, podsPath, manifest, nil))
	default:
		change := map[string]any{"metadata": map[string]any{"annotations": annotations}}
		testutil.NoError(t, n.API.do(http.MethodPatch, podsPath+"/"+name, change, nil))
	}
}

func (n *Node) manifest(pod string) string { return filepath.Join(n.manifests, pod+".json") }

func containerSpecs(pod string, containers []Container) []map[string]any {
	specs := make([]map[string]any, 0, len(containers))
	for _, c := range containers {
		limits := map[string]int{Display: c.Display, Compute: c.Compute}
		maps.Copy(limits, c.Resources)
		maps.DeleteFunc(limits, func(_ string, count int) bool { return count == 0 })
		env := []map[string]string{}
		for name, value := range c.Env {
			env = append(env, map[string]string{"name": name, "value": value})
		}
		mounts := []map[string]string{{"name": "reports", "mountPath": reportDir}}
		if c.SubPathExpr != "" {
			mounts = append(mounts, map[string]string{"name": "reports", "mountPath": "/sub", "subPathExpr": c.SubPathExpr})
		}
		script := Wait
		if len(limits) > 0 {
			script = reportMissingGPU + Wait
		}
		specs = append(specs, map[string]any{
			"name":            c.Name,
			"image":           cmp.Or(c.Image, Image),
			"imagePullPolicy": "Never",
			"command":         []string{"/bin/sh", "-c", cmp.Or(c.Script, script), pod + "/" + c.Name},
			"volumeMounts":    mounts,
			"env":             env,
			"resources":       map[string]any{"limits": limits},
		})
	}
	return specs
}

// Delete takes pods away from the kubelet without waiting for their end.
func (n *Node) Delete(t testing.TB, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		var err error
		if n.APIPods {
			err = n.API.do(http.MethodDelete, podsPath+"/"+pod, nil, nil)
		} else {
			err = os.Remove(n.manifest(pod))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

// DeleteNow deletes a pod of the API server, which does not wait for the kubelet.
func (n *Node) DeleteNow(t testing.TB, pod string) {
	t.Helper()
	testutil.NoError(t, n.API.do(http.MethodDelete, podsPath+"/"+pod, map[string]any{"gracePeriodSeconds": 0}, nil))
}

// Remove takes pods away and waits until nothing of them runs or holds a
// device any more.
func (n *Node) Remove(t testing.TB, pods ...string) {
	t.Helper()
	n.Delete(t, pods...)
	for _, pod := range pods {
		Eventually(t, podTimeout, "pod "+pod+" is gone", func() error {
			all, err := n.pods()
			if err != nil {
				return err
			}
			if _, found := all[n.podName(pod)]; found {
				return errors.New("the kubelet still has it")
			}
			containers, err := n.containers(pod)
			if err != nil {
				return err
			}
			for _, c := range containers {
				if c.GetState() == cri.ContainerState_CONTAINER_RUNNING {
					return fmt.Errorf("its container %s still runs", c.GetMetadata().GetName())
				}
			}
			return nil
		})
	}
}

// Status is a pod with the kubelet's status of it.
type Status struct{ corev1.Pod }

func (s Status) String() string {
	text := fmt.Sprintf("phase %s %s %s", s.Status.Phase, s.Status.Reason, s.Status.Message)
	for _, c := range s.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			text += "; " + c.Message
		}
	}
	for _, c := range slices.Concat(s.Status.InitContainerStatuses, s.Status.ContainerStatuses) {
		text += fmt.Sprintf("; %s %s, %d restarts", c.Name, c.State.String(), c.RestartCount)
	}
	return text
}

// Container returns the status of a container or init container.
func (s Status) Container(name string) (corev1.ContainerStatus, bool) {
	for _, c := range slices.Concat(s.Status.ContainerStatuses, s.Status.InitContainerStatuses) {
		if c.Name == name {
			return c, true
		}
	}
	return corev1.ContainerStatus{}, false
}

// pods returns the kubelet's pods by name.
func (n *Node) pods() (map[string]Status, error) {
	response, err := n.get("/pods")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var list struct{ Items []Status }
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("read the kubelet's pods: %w", err)
	}
	pods := make(map[string]Status, len(list.Items))
	for _, pod := range list.Items {
		pods[pod.Name] = pod
	}
	return pods, nil
}

// Status returns the kubelet's status of a pod.
func (n *Node) Status(pod string) (Status, error) {
	all, err := n.pods()
	if err != nil {
		return Status{}, err
	}
	status, found := all[n.podName(pod)]
	if !found {
		return Status{}, fmt.Errorf("the kubelet has no pod %s", pod)
	}
	return status, nil
}

// WaitStatus waits for a pod's status to satisfy check and returns it.
func (n *Node) WaitStatus(t testing.TB, pod, what string, check func(Status) error) Status {
	t.Helper()
	var status Status
	Eventually(t, podTimeout, "pod "+pod+": "+what, func() (err error) {
		status, err = n.Status(pod)
		if err != nil {
			return err
		}
		if err := check(status); err != nil {
			return fmt.Errorf("%w: %v%s", err, status, eventsText(n.EventsSince(pod, 0)))
		}
		return nil
	})
	return status
}

// WaitRunning waits until every container of a pod runs.
func (n *Node) WaitRunning(t testing.TB, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		n.WaitStatus(t, pod, "all containers run", Status.Running)
	}
}

// RunPod applies a pod, waits until it runs, and fails the test unless its containers
// have the GPUs that the kubelet assigned to them. It returns the pod's name.
func (n *Node) RunPod(t testing.TB, pod Pod) string {
	t.Helper()
	name := n.Apply(t, pod)
	n.WaitServed(t, name)
	return name
}

// WaitServed waits until pods run, and fails the test unless their containers have the
// GPUs that the kubelet assigned to them.
func (n *Node) WaitServed(t testing.TB, pods ...string) {
	t.Helper()
	n.WaitRunning(t, pods...)
	for _, pod := range pods {
		for _, c := range n.applied[pod].Containers {
			n.MustHave(t, pod, c.Name, slices.Compact(n.AssignedGPUs(t, pod, c.Name))...)
		}
	}
}

// Running returns an error unless all containers of the pod run.
func (s Status) Running() error {
	if s.Status.Phase == "Failed" {
		return errors.New("the kubelet refused it")
	}
	if len(s.Status.ContainerStatuses) == 0 {
		return errors.New("no container yet")
	}
	for _, c := range s.Status.ContainerStatuses {
		if c.State.Running == nil {
			return fmt.Errorf("container %s does not run", c.Name)
		}
	}
	return nil
}

// MustNotRun fails the test if container main of a pod runs.
func (n *Node) MustNotRun(t testing.TB, pod string) {
	t.Helper()
	status, err := n.Status(pod)
	testutil.NoError(t, err)
	if c, _ := status.Container("main"); c.State.Running != nil {
		t.Errorf("container main of pod %s runs", pod)
	}
}

// WaitRefused waits until the kubelet has refused to admit a pod, or with WindowsKubelet to
// create its container main, and returns the reason and message.
func (n *Node) WaitRefused(t testing.TB, pod string) (message string) {
	t.Helper()
	n.WaitStatus(t, pod, "the kubelet refuses it", func(s Status) error {
		c, _ := s.Container("main")
		switch waiting := c.State.Waiting; {
		case s.Status.Phase == "Failed":
			message = s.Status.Reason + ": " + s.Status.Message
		case n.WindowsKubelet && waiting != nil && waiting.Reason == "CreateContainerConfigError":
			message = waiting.Message
		default:
			return errors.New("it is not refused")
		}
		return nil
	})
	return message
}

// WaitNotStarted waits until the kubelet reports a failure to start a
// container of the pod that happened after its log's mark, and returns the
// event's message.
func (n *Node) WaitNotStarted(t testing.TB, pod, container string, since Mark) string {
	t.Helper()
	var message string
	n.WaitStatus(t, pod, "an event has the reason why container "+container+" does not start", func(s Status) error {
		for _, event := range n.EventsSince(pod, since) {
			if event.Reason == "Failed" && strings.Contains(event.Object, "{"+container+"}") {
				message = event.Message
				return nil
			}
		}
		return errors.New("no such event")
	})
	return message
}

// ContainerID returns the ID of a container that runs.
func (n *Node) ContainerID(t testing.TB, pod, container string) string {
	t.Helper()
	status, err := n.Status(pod)
	testutil.NoError(t, err)
	c, found := status.Container(container)
	if !found || c.State.Running == nil {
		t.Fatalf("container %s of pod %s does not run: %v", container, pod, status)
	}
	return strings.TrimPrefix(c.ContainerID, "containerd://")
}

// Event is an event of a pod.
type Event struct {
	At                            time.Time // without a year
	Type, Reason, Object, Message string
}

// EventsSince returns the kubelet's events of a pod after a mark of its log, the oldest first.
func (n *Node) EventsSince(pod string, since Mark) []Event {
	var events []Event
	for line := range strings.Lines(n.Kubelet.Log(since)) {
		_, fields, found := strings.Cut(line, `"Event occurred" `)
		if !found || !strings.Contains(fields, fmt.Sprintf(`object="default/%s"`, n.podName(pod))) {
			continue
		}
		// The header of klog has no year.
		at, _ := time.ParseInLocation("2006 0102 15:04:05.000000", time.Now().Format("2006 ")+line[1:min(len(line), 21)], time.Local)
		events = append(events, Event{
			At:      at,
			Type:    field(fields, "type"),
			Reason:  field(fields, "reason"),
			Object:  field(fields, "fieldPath"),
			Message: field(fields, "message"),
		})
	}
	return events
}

func eventsText(events []Event) string {
	text := "\n  events:"
	for _, e := range events {
		text += fmt.Sprintf("\n    %s %s %s: %s", e.Type, e.Reason, e.Object, e.Message)
	}
	return text
}

// field returns the value of name="value" in a structured log line.
func field(line, name string) string {
	_, rest, _ := strings.Cut(" "+line, " "+name+"=")
	quoted, _ := strconv.QuotedPrefix(rest) // "" if there is no such field, and then its value.
	value, _ := strconv.Unquote(quoted)
	return value
}
