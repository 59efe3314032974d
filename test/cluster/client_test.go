//go:build e2e && linux

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// commandTimeout bounds a call of kubectl or helm.
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
	return m.must(t, kubectl, "", args...)
}

// apply passes manifests to `kubectl apply`.
func (m *machine) apply(t testing.TB, manifests string, flags ...string) {
	t.Helper()
	m.must(t, kubectl, manifests, append([]string{"apply", "-f", "-"}, flags...)...)
}

// helm runs helm and returns its output.
func (m *machine) helm(t testing.TB, args ...string) string {
	t.Helper()
	return m.must(t, helm, "", args...)
}

func (m *machine) must(t testing.TB, part, input string, args ...string) string {
	t.Helper()
	out, err := m.try(part, input, args...)
	testutil.NoError(t, err)
	return out
}

// try runs kubectl or helm and returns the output, which an error contains too.
func (m *machine) try(part, input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.parts.Stock(part), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+m.api.Kubeconfig, "HOME="+m.dir)
	cmd.Dir = m.parts.Root
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", cmd.Args[0], strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

// dump logs the state of the cluster after a failure.
func (m *machine) dump(t testing.TB, namespaces ...string) {
	t.Helper()
	for _, namespace := range namespaces {
		for _, command := range []string{"get pods --output wide", "describe pods", "logs --selector app.kubernetes.io/name --all-containers --prefix --ignore-errors --tail 60"} {
			out, err := m.try(kubectl, "", append(strings.Fields(command), "--namespace", namespace)...)
			t.Logf("---- kubectl %s (%v)\n%s", command, err, out)
		}
	}
	t.Log(m.containerd.Tail(25))
	t.Log(m.kubelet.Tail(25))
}
