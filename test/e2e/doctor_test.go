//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
	"github.com/directx-nri/directx-nri/test/bed/fakekubelet"
)

const (
	doctorRegistry = `[plugins."io.containerd.grpc.v1.cri".registry.configs."example.com".auth]
  username = "builder"
  password = "SECRET-registry-password"
`
	nriSection   = `[plugins."io.containerd.nri.v1.nri"]`
	podResources = "/var/lib/kubelet/pod-resources/kubelet.sock"
)

// doctorNode is a node with a stand-in for the kubelet.
type doctorNode struct {
	*suite
	*testing.T
	kubelet *fakekubelet.Kubelet
}

func newDoctorNode(t *testing.T) *doctorNode {
	t.Helper()
	n := &doctorNode{T: t, suite: start(t, bed.Options{NoKubelet: true, Inventory: bed.NewInventory(1, 1)})}
	n.EditContainerd(t, nriSection, doctorRegistry+nriSection)
	testutil.NoError(t, os.MkdirAll(filepath.Dir(podResources), 0o755))
	n.startKubelet()
	t.Cleanup(func() { n.kubelet.Stop() })
	n.Plugin.Start(t)
	n.Advertiser.Start(t)
	return n
}

func (n *doctorNode) startKubelet() {
	n.Helper()
	var err error
	n.kubelet, err = fakekubelet.Start(bed.DevicePluginDir, podResources)
	testutil.NoError(n, err)
}

// doctor returns a call of dxctl doctor.
func (n *doctorNode) doctor(more ...string) *exec.Cmd {
	return n.DxctlCommand("doctor", append([]string{"--cri-socket", n.Address(), "--runtime-dir", n.RuntimeDir}, more...)...)
}

// waitFailures waits until the lines of the checks that failed are those that accept wants.
func (n *doctorNode) waitFailures(t *testing.T, what string, accept func([]string) bool) {
	t.Helper()
	bed.Eventually(t, time.Minute, what, func() error {
		status, stdout, stderr := call(n, n.doctor())
		failures := slices.DeleteFunc(strings.Split(stdout, "\n"), func(line string) bool { return !strings.HasPrefix(line, "✘ ") })
		if (status != 0) != (len(failures) > 0) || !accept(failures) {
			return fmt.Errorf("status %d: %s%s", status, stdout, stderr)
		}
		return nil
	})
}

func (n *doctorNode) waitHealthy() {
	n.Helper()
	n.waitFailures(n.T, "a healthy node", func(all []string) bool { return len(all) == 0 })
}

// TestDoctor breaks one thing of a node after the other, and expects each one named and
// nothing else.
func TestDoctor(t *testing.T) {
	n := newDoctorNode(t)
	n.waitHealthy()
	if status, stdout, stderr := call(n, n.doctor()); status != 0 || !strings.Contains(stdout, "✔ nri ") || stderr != "" {
		t.Errorf("on a healthy node: status %d\n%s%s", status, stdout, stderr)
	}
	_, err := n.kubelet.Wait(t.Context(), bed.Display)
	testutil.NoError(n, err)
	_, response, err := n.kubelet.Allocate(t.Context(), bed.Display, 1)
	testutil.NoError(n, err)
	id := response.GetAnnotations()[displayKey]
	n.waitHealthy()
	n.testReport(id)
	for _, b := range n.breakages() {
		t.Run(strings.ReplaceAll(b.name, " ", "-"), func(t *testing.T) {
			b.do()
			defer b.fix()
			n.waitFailures(t, "one failure of "+b.check+" with "+b.says, func(all []string) bool {
				return len(all) == 1 && strings.HasPrefix(all[0], "✘ "+b.check+" ") && strings.Contains(all[0], b.says)
			})
		})
		n.waitHealthy()
	}
	t.Run("without-permission", func(t *testing.T) {
		command := n.doctor()
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		status, stdout, stderr := call(n, command)
		if status != 1 || stdout != "" || !strings.Contains(stderr, "Run dxctl as root,") {
			t.Errorf("status %d\n%s%s", status, stdout, stderr)
		}
	})
}

// breakage is one way to break a node. check and says are the finding.
type breakage struct {
	name, check, says string
	do, fix           func()
}

// breakages returns the ways to break the node that need its programs.
func (n *doctorNode) breakages() []breakage {
	stopped := func(check string, p *bed.Process) breakage {
		return breakage{p.Name + " is stopped", check, "", func() { p.Terminate(n) }, func() { p.Start(n) }}
	}
	frozen := func(check string, p *bed.Process) breakage {
		return breakage{p.Name + " hangs", check, "", func() { p.Freeze(n) }, func() { p.Thaw(n) }}
	}
	// containerd is restarted with another configuration.
	changed := func(name, says, old, text string) breakage {
		return breakage{name, "nri", says, func() { n.EditContainerd(n, old, text) }, func() { n.EditContainerd(n, text, old) }}
	}
	return []breakage{
		changed("NRI is off", "disable = false", "disable = false", "disable = true"),
		changed("NRI refuses connections", "", "disable_connections = false", "disable_connections = true"),
		stopped("containerd", n.Containerd), frozen("containerd", n.Containerd),
		stopped("nri", n.Plugin), frozen("nri", n.Plugin),
		stopped("advertiser", n.Advertiser),
		{"the kubelet is stopped", "kubelet", "", func() { n.kubelet.Stop() }, n.startKubelet},
	}
}

// testReport checks that the file of --report has the facts of the node, and no secret.
func (n *doctorNode) testReport(id string) {
	file := filepath.Join(n.Dir, "report.txt")
	if status, _, stderr := call(n, n.doctor("--report", file)); status != 0 || !strings.Contains(stderr, file) {
		n.Fatalf("status %d: %s", status, stderr)
	}
	text := string(bed.ReadFile(n, file))
	if strings.Contains(text, "SECRET-") || strings.Contains(text, id) {
		n.Errorf("it has a secret:\n%s", text)
	}
	_, version, _ := call(n, exec.Command(n.Product("dxctl"), "--version"))
	version = strings.Fields(version)[2] // after the name and "version"
	bed.MustContain(n, "the report", text, "✔ nri ", "instanceID: ", "injection: auto", version)
}
