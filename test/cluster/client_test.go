//go:build e2e && linux

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// commandTimeout bounds a script.
const commandTimeout = 5 * time.Minute

// pod returns a pod of the namespace default.
func (m *machine) pod(name string) (bed.Status, error) {
	var pod bed.Status
	err := m.api.Get("/api/v1/namespaces/default/pods/"+name, &pod)
	return pod, err
}

func (m *machine) pods(namespace string) ([]bed.Status, error) {
	var list struct{ Items []bed.Status }
	err := m.api.Get("/api/v1/namespaces/"+namespace+"/pods", &list)
	return list.Items, err
}

// kubectl runs kubectl and returns its output.
func (m *machine) kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return m.run(t, "", `exec kubectl "$@"`, args...)
}

// apply passes manifests to `kubectl apply`.
func (m *machine) apply(t testing.TB, manifests string, flags ...string) {
	t.Helper()
	m.run(t, manifests, `exec kubectl apply -f - "$@"`, flags...)
}

// helm runs helm and returns its output.
func (m *machine) helm(t testing.TB, args ...string) string {
	t.Helper()
	return m.run(t, "", `exec helm "$@"`, args...)
}

// follow runs the commands of a page's section that contain some words, with what the reader replaces.
func (m *machine) follow(t testing.TB, page, section, words string, replace ...string) {
	t.Helper()
	text := strings.ReplaceAll(mustRead(t, filepath.Join(m.parts.Root, page)), "\\\n", "")
	_, text, _ = strings.Cut(text, "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	commands := regexp.MustCompile(`(?m)^[$#] (.*`+words+`.*)$`).FindAllStringSubmatch(text, -1)
	if len(commands) == 0 {
		t.Fatalf("%s has no %s below %s", page, words, section)
	}
	var script string
	for _, command := range commands {
		script += command[1] + "\n"
	}
	m.run(t, "", strings.NewReplacer(replace...).Replace(script))
}

// run runs a shell script, which must succeed, and returns what it prints.
func (m *machine) run(t testing.TB, input, script string, args ...string) string {
	t.Helper()
	out, err := m.try(input, script, args...)
	testutil.NoError(t, err)
	return out
}

// try runs a shell script in the repository, with the suite's programs and cluster, and returns the output, which an
// error contains too. Images are for this machine and for Windows, the latter without Microsoft's base image.
func (m *machine) try(input, script string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-ec", script, "sh"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+m.api.Kubeconfig, "KUBECACHEDIR="+m.dir,
		fmt.Sprintf("PATH=%s:%s:%s", filepath.Dir(m.parts.Stock(kubectl)), filepath.Dir(m.parts.Stock(helm)), os.Getenv("PATH")),
		"CONTAINERD_NAMESPACE="+bed.PodNamespace, "CONTAINERD_SNAPSHOTTER="+snapshotter(),
		"IMAGE_PLATFORMS="+platform+" windows-amd64", "WINDOWS_BASE_IMAGE=scratch")
	cmd.Dir = m.parts.Root
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", script, strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

// dump logs the state of the cluster after a failure.
func (m *machine) dump(t testing.TB, namespaces ...string) {
	t.Helper()
	for _, namespace := range namespaces {
		for _, command := range []string{"get pods --output wide", "describe pods", "logs --selector app.kubernetes.io/name --all-containers --prefix --ignore-errors --tail 60"} {
			out, err := m.try("", "kubectl "+command+" --namespace "+namespace)
			t.Logf("---- kubectl %s (%v)\n%s", command, err, out)
		}
	}
	t.Log(m.containerd.Tail(25))
	t.Log(m.kubelet.Tail(25))
}
