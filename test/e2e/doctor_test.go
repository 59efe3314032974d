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

// The files of the node. Each has a secret where one can be.
const (
	doctorRegistry = `[plugins."io.containerd.grpc.v1.cri".registry.configs."example.com".auth]
  username = "builder"
  password = "SECRET-registry-password"
`
	doctorInventory = `apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
# password: SECRET-inventory-comment
devices:
- instanceID: GPU-0
  description: Tesla T4 https://user:SECRET-url@example.com/x?sig=SECRET-query
  display: true
  linux: {deviceNodes: [/dev/loop-control], libraries: [DIR/lib/libgpu.so]}
- instanceID: NPU
  compute: true
  linux: {deviceNodes: [/dev/null]}
`
	doctorConfig = `# password: SECRET-config-comment
replicas: 2
`
	nriSection = `[plugins."io.containerd.nri.v1.nri"]`
)

// doctorNode is a node with a stand-in for the kubelet, which can forget a device plugin.
type doctorNode struct {
	*suite
	*testing.T
	kubelet *fakekubelet.Kubelet
}

func newDoctorNode(t *testing.T) *doctorNode {
	t.Helper()
	n := &doctorNode{T: t, suite: start(t, bed.Options{NoKubelet: true, Inventory: bed.NewInventory(1, 0), Config: doctorConfig})}
	n.write("lib/libgpu.so", "", 0o644)
	n.write(inventoryFile, strings.ReplaceAll(doctorInventory, "DIR", n.Dir), 0o644)
	n.EditContainerd(t, nriSection, doctorRegistry+nriSection)
	testutil.NoError(t, os.MkdirAll(filepath.Dir(podResources), 0o755))
	n.startKubelet()
	t.Cleanup(func() { n.kubelet.Stop() })
	n.Plugin.Start(t)
	n.Advertiser.Start(t)
	return n
}

const (
	podResources  = "/var/lib/kubelet/pod-resources/kubelet.sock"
	inventoryFile = "inventory/inventory.yaml"
)

func (n *doctorNode) startKubelet() {
	n.Helper()
	var err error
	n.kubelet, err = fakekubelet.Start(bed.DevicePluginDir, podResources)
	testutil.NoError(n, err)
}

// path returns the path of a file below the node's directory.
func (n *doctorNode) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(n.Dir, name)
}

func (n *doctorNode) read(name string) string { return string(bed.ReadFile(n, n.path(name))) }

func (n *doctorNode) write(name, text string, perm os.FileMode) {
	bed.WriteFile(n, n.path(name), text, perm)
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
	_, response, err := n.kubelet.Allocate(t.Context(), bed.Display, 1)
	testutil.NoError(n, err)
	id := response.GetAnnotations()[displayKey]
	n.waitHealthy()
	n.testReport(id)
	for _, b := range n.breakages("state/allocations/" + id + ".json") {
		t.Run(strings.ReplaceAll(b.name, " ", "-"), func(t *testing.T) {
			defer b.do(n)()
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
		if status != 1 || stdout != "" || !strings.Contains(stderr, "Run dxctl as root.") {
			t.Errorf("status %d\n%s%s", status, stdout, stderr)
		}
	})
}

// change breaks something and returns what fixes it.
type change func(n *doctorNode) (fix func())

// breakage is one way to break a node. check and says are the finding.
type breakage struct {
	name, check, says string
	do                change
}

// edit replaces a text in a file.
func edit(file, old, text string) change {
	return func(n *doctorNode) func() {
		n.Helper()
		before := n.read(file)
		if !strings.Contains(before, old) {
			n.Fatalf("%s has no %q:\n%s", file, old, before)
		}
		return replace(file, strings.Replace(before, old, text, 1))(n)
	}
}

// replace puts another file in the place of one.
func replace(file, text string) change {
	return func(n *doctorNode) func() {
		n.Helper()
		info, err := os.Stat(n.path(file))
		testutil.NoError(n, err)
		before := n.read(file)
		n.write(file, text, info.Mode().Perm())
		return func() { n.write(file, before, info.Mode().Perm()) }
	}
}

// move moves a file away.
func move(file string) change {
	return func(n *doctorNode) func() {
		testutil.NoError(n, os.Rename(n.path(file), n.path(file+".away")))
		return func() { testutil.NoError(n, os.Rename(n.path(file+".away"), n.path(file))) }
	}
}

// permit changes the permissions of a file.
func permit(file string, perm os.FileMode) change {
	return func(n *doctorNode) func() {
		info, err := os.Stat(n.path(file))
		testutil.NoError(n, err)
		testutil.NoError(n, os.Chmod(n.path(file), perm))
		return func() { testutil.NoError(n, os.Chmod(n.path(file), info.Mode().Perm())) }
	}
}

// add writes a new file.
func add(file, text string) change {
	return func(n *doctorNode) func() {
		n.write(file, text, 0o600)
		return func() { testutil.NoError(n, os.Remove(n.path(file))) }
	}
}

// containerd changes containerd's configuration, which is restarted.
func containerd(old, text string) change {
	return func(n *doctorNode) func() {
		n.EditContainerd(n, old, text)
		return func() { n.EditContainerd(n, text, old) }
	}
}

func stopped(p func(*doctorNode) *bed.Process) change {
	return func(n *doctorNode) func() { p(n).Terminate(n); return func() { p(n).Start(n) } }
}

func frozen(p func(*doctorNode) *bed.Process) change {
	return func(n *doctorNode) func() { p(n).Freeze(n); return func() { p(n).Thaw(n) } }
}

// breakages returns all ways to break the node, one record of which is in a file.
func (n *doctorNode) breakages(record string) []breakage {
	const config = "config.yaml"
	runtime := func(n *doctorNode) *bed.Process { return n.Containerd }
	plugin := func(n *doctorNode) *bed.Process { return n.Plugin }
	advertiser := func(n *doctorNode) *bed.Process { return n.Advertiser }
	row := func(name, check, says string, do change) breakage {
		return breakage{name, check, says, do}
	}
	return []breakage{
		row("a GPU is unhealthy", "gpu", "it overheated", edit(inventoryFile, "compute: true", "compute: true\n  health: {reason: it overheated}")),
		row("the inventory is broken", "config", "inventory.yaml", edit(inventoryFile, "kind: Inventory", "kind: Inventory\nsecretKey: 1")),
		row("a driver file is gone", "gpu", "lib/libgpu.so", move("lib/libgpu.so")),
		row("config.yaml is invalid", "config", "unknown", edit(config, "replicas: 2", "unknown: 1")),
		row("no rule is for the GPUs", "gpu", "no GPU is offered", edit(config, "replicas: 2", "resources: [{name: example.com/other, match: {description: none}}]")),
		row("a host directory is gone", "config", "/srv/no-such-directory", edit(config, "replicas: 2",
			"extraMounts: {sources: host-directories, hostDirectories: [/srv/no-such-directory]}")),
		row("others can write config.yaml", "config", "", permit(config, 0o666)),
		row("others can write the inventory", "config", "inventory.yaml", permit(inventoryFile, 0o666)),

		row("NRI is off", "nri", "", containerd("disable = false", "disable = true")),
		row("NRI refuses connections", "nri", "", containerd("disable_connections = false", "disable_connections = true")),
		row("containerd is stopped", "containerd", "", stopped(runtime)),
		row("containerd hangs", "containerd", "", frozen(runtime)),
		row("the plugin is stopped", "nri", "", stopped(plugin)),
		row("the plugin hangs", "nri", "", frozen(plugin)),
		row("the advertiser is stopped", "advertiser", "", stopped(advertiser)),
		row("the kubelet is stopped", "kubelet", "", func(n *doctorNode) func() { n.kubelet.Stop(); return n.startKubelet }),
		row("the advertiser is not registered", "advertiser", bed.Display, func(n *doctorNode) func() {
			n.kubelet.Forget(bed.Display)
			return func() { n.kubelet.Stop(); n.startKubelet() }
		}),
		row("PodResources is elsewhere", "kubelet", "", move(podResources)),

		row("a record is damaged", "records", filepath.Base(record), edit(record, "{", "[")),
		row("the record directory is open to others", "records", "", permit("state/allocations", 0o777)),
		row("the state directory is open to others", "policy", "", permit("state", 0o777)),
		row("the runtime directory is open to others", "nri", "", permit("runtime", 0o777)),
	}
}

// testReport checks that the file of --report has its parts, and no secret.
func (n *doctorNode) testReport(id string) {
	defer add("state/shim.log", "level=error msg=\"allocation "+id+" password=SECRET-log\" Authorization: Bearer SECRET-bearer\nlevel=info msg=well\n")(n)()
	file := n.path("report.txt")
	if status, _, stderr := call(n, n.doctor("--report", file)); status != 0 || !strings.Contains(stderr, file) {
		n.Fatalf("status %d: %s", status, stderr)
	}
	info, err := os.Stat(file)
	testutil.NoError(n, err)
	text := n.read("report.txt")
	if strings.Contains(text, "SECRET-") || strings.Contains(text, id) || info.Mode().Perm() != 0o600 {
		n.Errorf("mode %v; it has a secret:\n%s", info.Mode(), text)
	}
	_, version, _ := call(n, exec.Command(n.Product("dxctl"), "--version"))
	version = strings.Fields(version)[2] // after the name and "version"
	for _, want := range []string{"✔ nri ", "instanceID: GPU-0", "injection: auto", "msg=well", version} {
		if !strings.Contains(text, want) {
			n.Errorf("no %s in\n%s", want, text)
		}
	}
	if status, _, stderr := call(n, n.doctor("--report", file)); status != 1 || !strings.Contains(stderr, "exists") {
		n.Errorf("again: status %d: %s", status, stderr)
	}
}
