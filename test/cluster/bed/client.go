//go:build e2e && linux

package bed

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// commandTimeout bounds one call of kubectl or helm.
const commandTimeout = 5 * time.Minute

func newClient() *http.Client {
	return &http.Client{
		Timeout: callTimeout,
		// The API server makes its certificate itself.
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
}

// Get reads an object from the API server, by its path there. It is much cheaper
// than a call of kubectl, for what is looked at again and again.
func (c *Cluster) Get(path string, into any) error {
	request, err := http.NewRequest(http.MethodGet, apiURL+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server answers %s to %s: %s", response.Status, path, body)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(body, into)
}

// Node returns a node.
func (c *Cluster) Node(name string) (corev1.Node, error) {
	var n corev1.Node
	err := c.Get("/api/v1/nodes/"+name, &n)
	return n, err
}

// Pod returns a pod.
func (c *Cluster) Pod(namespace, name string) (corev1.Pod, error) {
	var pod corev1.Pod
	err := c.Get("/api/v1/namespaces/"+namespace+"/pods/"+name, &pod)
	return pod, err
}

// Pods returns the pods of a namespace, "" for all.
func (c *Cluster) Pods(namespace string) ([]corev1.Pod, error) {
	path := "/api/v1/pods"
	if namespace != "" {
		path = "/api/v1/namespaces/" + namespace + "/pods"
	}
	var list corev1.PodList
	err := c.Get(path, &list)
	return list.Items, err
}

// DaemonSets returns the DaemonSets of a namespace.
func (c *Cluster) DaemonSets(namespace string) ([]appsv1.DaemonSet, error) {
	var list appsv1.DaemonSetList
	err := c.Get("/apis/apps/v1/namespaces/"+namespace+"/daemonsets", &list)
	return list.Items, err
}

// Kubectl runs kubectl, which must not fail, and returns what it prints.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.TryKubectl("", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Apply hands manifests to `kubectl apply`, with further flags.
func (c *Cluster) Apply(t testing.TB, manifests string, flags ...string) string {
	t.Helper()
	out, err := c.TryKubectl(manifests, append([]string{"apply", "-f", "-"}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryKubectl runs kubectl with an input and returns all that it prints. The
// error has it too.
func (c *Cluster) TryKubectl(input string, args ...string) (string, error) {
	return c.command(kubectl, input, args...)
}

// Helm runs helm, which must not fail, and returns what it prints.
func (c *Cluster) Helm(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.TryHelm(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryHelm runs helm and returns all that it prints. The error has it too.
func (c *Cluster) TryHelm(args ...string) (string, error) { return c.command(helm, "", args...) }

func (c *Cluster) command(part, input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Parts.Stock(part), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.file("kubeconfig"), "HOME="+c.Dir)
	cmd.Dir = c.Parts.Root
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", cmd.Args[0], strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

// Exec runs a shell script in a container, whose ID is as a pod's status has it, and
// returns all that it prints. It is much cheaper than `kubectl exec`.
func (c *Cluster) Exec(id, script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	response, err := c.cri.ExecSync(ctx, &cri.ExecSyncRequest{
		ContainerId: strings.TrimPrefix(id, "containerd://"), Cmd: []string{"/bin/sh", "-c", script},
	}, grpc.WaitForReady(true)) // containerd may be on its way up.
	if err != nil {
		return "", fmt.Errorf("run %q in container %s: %w", script, id, err)
	}
	out := string(response.GetStdout()) + string(response.GetStderr())
	if code := response.GetExitCode(); code != 0 {
		return out, fmt.Errorf("%q ended with status %d in container %s: %s", script, code, id, out)
	}
	return out, nil
}

// Dump logs what there is to see of the cluster: pods, events, the logs of the
// product's containers, and the end of the node's own logs.
func (c *Cluster) Dump(t testing.TB, namespaces ...string) {
	t.Helper()
	show := func(args ...string) {
		out, err := c.TryKubectl("", args...)
		if err != nil {
			out = err.Error()
		}
		t.Logf("---- kubectl %s\n%s", strings.Join(args, " "), out)
	}
	show("get", "pods", "--all-namespaces", "--output", "wide")
	for _, namespace := range namespaces {
		pods, err := c.Pods(namespace)
		if err != nil {
			t.Log(err)
			continue
		}
		for _, pod := range pods {
			if ready(pod) {
				show("logs", "--namespace", namespace, pod.Name, "--all-containers", "--prefix", "--ignore-errors", "--tail", "10")
				continue
			}
			show("describe", "pod", "--namespace", namespace, pod.Name)
			show("logs", "--namespace", namespace, pod.Name, "--all-containers", "--prefix", "--ignore-errors", "--tail", "60")
		}
	}
	for _, p := range []interface{ Tail(int) string }{c.Containerd, c.Kubelet} {
		t.Log(p.Tail(25))
	}
}

func ready(pod corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
