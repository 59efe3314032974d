//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/cmd/dxctl/doctor"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
	"github.com/directx-nri/directx-nri/test/bed"
	"github.com/directx-nri/directx-nri/test/bed/fakekubelet"
)

// The files of the node. Each has a secret where one can be.
const (
	doctorContainerd = `version = 2
# mine
imports = ["DIR/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri".registry.configs."example.com".auth]
  username = "builder"
  password = "SECRET-registry-password"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
  socket_path = "DIR/nri.sock" # not the default
  plugin_path = "DIR/nri"
  plugin_config_path = "DIR/nri"
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
	doctorConfig = `apiVersion: directx.microsoft.com/v1alpha1
kind: Configuration
# password: SECRET-config-comment
replicas: 2
inventory: DIR/etc/gpus.yaml
shim:
  realShim: containerd-shim-runc-v2
`
)

// doctorNode is a machine with our real NRI plugin, shim and advertiser, and a stand-in
// for the kubelet, which can forget a device plugin.
type doctorNode struct {
	*machine
	kubelet            *fakekubelet.Kubelet
	plugin, advertiser *bed.Process
}

// newDoctorNode sets a node up as the documentation does.
func newDoctorNode(t *testing.T) *doctorNode {
	t.Helper()
	n := &doctorNode{machine: newMachine(t, machineOptions{containerd: containerd1, config: doctorContainerd})}
	for dir, perm := range map[string]os.FileMode{"": 0o755, "conf.d": 0o755, "kubelet": 0o755, "etc": 0o700} {
		testutil.NoError(n, os.MkdirAll(n.path(dir), perm), os.Chmod(n.path(dir), perm))
	}
	n.write("lib/libgpu.so", "", 0o644)
	n.write("etc/gpus.yaml", n.text(doctorInventory), 0o644)
	n.write("etc/config.yaml", n.text(doctorConfig), 0o600)
	n.plugin = n.process("directx-nri", "--nri-socket", n.path("nri.sock"), "--cri-socket", n.socket())
	n.advertiser = n.process("directx-advertiser", "--config", n.path("etc/config.yaml"), "--kubelet-dir", n.path("kubelet"),
		"--pod-resources-socket", n.path("pr.sock"), "--cri-socket", n.socket())
	n.must(n.runtime("install"))
	n.mustRestart("configure")
	n.startKubelet()
	t.Cleanup(func() { n.kubelet.Stop() })
	n.plugin.Start(t)
	n.advertiser.Start(t)
	return n
}

// process returns one of our programs, which ends with the test.
func (n *doctorNode) process(name string, args ...string) *bed.Process {
	p := bed.NewProcess(name, n.path(name+".log"), func() *exec.Cmd {
		return exec.Command(n.parts.Product(name), append(args, "--state-dir", n.path("ours"), "--runtime-dir", n.path("run"))...)
	})
	n.Cleanup(func() {
		if n.Failed() {
			n.Log(p.Tail(30))
		}
		if p.Running() {
			p.Kill(n)
		}
	})
	return p
}

func (n *doctorNode) startKubelet() {
	n.Helper()
	var err error
	n.kubelet, err = fakekubelet.Start(n.path("kubelet"), n.path("pr.sock"))
	testutil.NoError(n, err)
}

// doctor returns a call of dxctl doctor.
func (n *doctorNode) doctor(more ...string) *exec.Cmd {
	return n.dxctl(append([]string{
		"doctor", "--containerd-config", n.path("config.toml"), "--cri-socket", n.socket(), "--state-dir", n.path("ours"), "--runtime-dir", n.path("run"),
		"--kubelet-dir", n.path("kubelet"), "--pod-resources-socket", n.path("pr.sock"), "--shim-dir", filepath.Dir(n.shim()),
	}, more...)...)
}

// waitFindings waits until the findings are those that accept wants.
func (n *doctorNode) waitFindings(t *testing.T, what string, accept func([]doctor.Finding) bool, flags ...string) {
	t.Helper()
	bed.Eventually(t, time.Minute, what, func() error {
		status, stdout, stderr := call(n, n.doctor(append([]string{"-o", "json"}, flags...)...))
		var r doctor.Report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			return fmt.Errorf("status %d: %w\n%s%s", status, err, stdout, stderr)
		}
		if (status != 0) != (len(r.Findings) > 0) || !accept(r.Findings) {
			return fmt.Errorf("status %d: %+v", status, r.Findings)
		}
		return nil
	})
}

func (n *doctorNode) waitHealthy() {
	n.Helper()
	n.waitFindings(n.T, "a healthy node", func(all []doctor.Finding) bool { return len(all) == 0 })
}

// TestDoctor breaks one thing of a node after the other, and expects each one named and
// nothing else.
func TestDoctor(t *testing.T) {
	n := newDoctorNode(t)
	n.waitHealthy()
	if status, stdout, stderr := call(n, n.doctor()); status != 0 || strings.Count(stdout, "\n") != 1 || stderr != "" {
		t.Errorf("on a healthy node: status %d\n%s%s", status, stdout, stderr)
	}
	_, response, err := n.kubelet.Allocate(t.Context(), bed.Display, 1)
	testutil.NoError(n, err)
	token := response.GetEnvs()[displayToken]
	n.waitHealthy()
	n.testReport(token)
	for _, b := range n.breakages("ours/allocations/" + recordName(token)) {
		t.Run(strings.ReplaceAll(b.name, " ", "-"), func(t *testing.T) {
			defer b.do(n)()
			n.waitFindings(t, "one finding of "+b.check+" with "+b.says, func(all []doctor.Finding) bool {
				return len(all) == 1 && all[0].Check == b.check && strings.Contains(all[0].Object+" "+all[0].Problem, b.says)
			}, b.flags...)
		})
		n.waitHealthy()
	}
	t.Run("without-permission", func(t *testing.T) {
		command := n.doctor()
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		status, stdout, stderr := call(n, command)
		if status != 3 || strings.Contains(stdout, "problem ") || !strings.Contains(stdout, n.socket()) {
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
	flags             []string
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

// loaded makes a change of containerd's file that containerd then reads.
func loaded(do change) change {
	return func(n *doctorNode) func() {
		fix := do(n)
		n.service("start")
		return func() { fix(); n.service("start") }
	}
}

// breakages returns all ways to break the node, one record of which is in a file.
func (n *doctorNode) breakages(record string) []breakage {
	const config, inventory, containerd, shim = "etc/config.yaml", "etc/gpus.yaml", "config.toml", "bin/" + shimfile.BaseName
	const nri = `[plugins."io.containerd.nri.v1.nri"]`
	const runtimes = `[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.`
	row := func(name, check, says string, do change, flags ...string) breakage {
		return breakage{name, check, says, do, flags}
	}
	return []breakage{
		row("a GPU is unhealthy", doctor.CheckDevices, "it overheated", edit(inventory, "compute: true", "compute: true\n  health: {reason: it overheated}")),
		row("the inventory is broken", doctor.CheckConfig, "gpus.yaml", edit(inventory, "kind: Inventory", "kind: Inventory\nsecretKey: 1")),
		row("a driver file is gone", doctor.CheckDriverFiles, "lib/libgpu.so", move("lib/libgpu.so")),
		row("config.yaml is invalid", doctor.CheckConfig, "unknown", edit(config, "shim:", "unknown: 1\nshim:")),
		row("no rule is for the GPUs", doctor.CheckResources, "GPU-0", edit(config, "shim:",
			"resources: [{name: example.com/other, match: {description: none}}]\nshim:")),
		row("a host directory is gone", doctor.CheckPermissions, "/srv/no-such-directory", edit(config, "shim:",
			"extraMounts: {sources: host-directories, hostDirectories: [/srv/no-such-directory]}\nshim:")),
		row("others can write config.yaml", doctor.CheckPermissions, "", permit(config, 0o666)),
		row("others can write the inventory", doctor.CheckPermissions, "gpus.yaml", permit(inventory, 0o666)),
		row("the real shim is not there", doctor.CheckConfig, "config.yaml", edit(config, "containerd-shim-runc-v2", "no-such-shim")),

		row("the shim is gone", doctor.CheckShim, "runc", move(shim)),
		row("the shim is of another version", doctor.CheckShim, "0.9-test", func(n *doctorNode) func() {
			testutil.NoError(n, bed.Build(n.path("old"), "0.9-test", shimfile.BaseName))
			return replace(shim, n.read("old/"+shimfile.BaseName))(n)
		}),
		row("the shim is damaged", doctor.CheckShim, "", replace(shim, "no program")),
		row("the shim is not executable", doctor.CheckShim, "executable", permit(shim, 0o644)),
		row("others can write the shim", doctor.CheckPermissions, "", permit(shim, 0o777)),
		row("runtime_path leads nowhere", doctor.CheckShim, "/nowhere/", loaded(edit(containerd, n.shim(), "/nowhere/containerd-shim-directx-v1"))),
		row("annotations are not handed on", doctor.CheckHandlers, "directx.microsoft.com",
			loaded(edit(containerd, `pod_annotations = ['directx.microsoft.com/*']`, `pod_annotations = []`))),
		row("the file is not loaded", doctor.CheckHandlers, "other", edit(containerd, nri, runtimes+"other]\n  runtime_type = \"io.containerd.runc.v2\"\n  runtime_path = \""+n.shim()+"\"\n"+
			"  pod_annotations = [\"directx.microsoft.com/*\"]\n  container_annotations = [\"directx.microsoft.com/*\"]\n"+nri)),
		row("containerd's file is no TOML", doctor.CheckContainerdConfig, "config.toml:1:", edit(containerd, "version = 2", "version == 2")),
		row("an import takes over", doctor.CheckContainerdConfig, "conf.d/x.toml", add("conf.d/x.toml", "version = 2\n"+runtimes+"runc]\n  runtime_type = \"io.containerd.runc.v2\"\n")),
		row("NRI is off", doctor.CheckNRI, "disabled", loaded(edit(containerd, "disable = false", "disable = true"))),
		row("NRI is off and that is not loaded", doctor.CheckNRI, "disabled", edit(containerd, "disable = false", "disable = true")),

		row("containerd is stopped", doctor.CheckContainerd, "", func(n *doctorNode) func() { n.service("stop"); return func() { n.service("start") } }),
		row("containerd hangs", doctor.CheckContainerd, "", func(n *doctorNode) func() {
			testutil.NoError(n, syscall.Kill(n.pid(), syscall.SIGSTOP))
			return func() { testutil.NoError(n, syscall.Kill(n.pid(), syscall.SIGCONT)) }
		}, "--timeout", "1s"),
		row("the plugin is stopped", doctor.CheckNRI, "", func(n *doctorNode) func() { n.plugin.Stop(n); return func() { n.plugin.Start(n) } }),
		row("the plugin hangs", doctor.CheckNRI, "", func(n *doctorNode) func() { n.plugin.Freeze(n); return func() { n.plugin.Thaw(n) } }),
		row("the advertiser is stopped", doctor.CheckAdvertiser, "", func(n *doctorNode) func() { n.advertiser.Stop(n); return func() { n.advertiser.Start(n) } }),
		row("the kubelet is stopped", doctor.CheckKubelet, "", func(n *doctorNode) func() { n.kubelet.Stop(); return n.startKubelet }),
		row("the advertiser is not registered", doctor.CheckRegistration, bed.Display, func(n *doctorNode) func() {
			n.kubelet.Forget(bed.Display)
			return func() { n.kubelet.Stop(); n.startKubelet() }
		}),
		row("PodResources is elsewhere", doctor.CheckRegistration, "", move("pr.sock")),

		row("a record is damaged", doctor.CheckRecords, filepath.Base(record), edit(record, "GPU-0", "GPU-9")),
		row("the record directory is open to others", doctor.CheckRecords, "", permit("ours/allocations", 0o777)),
		row("the state directory is open to others", doctor.CheckPermissions, "", permit("ours", 0o777)),
		row("the runtime directory is open to others", doctor.CheckPermissions, "", permit("run", 0o777)),
		row("a restart was broken off", doctor.CheckLeftovers, "", edit("ours/runtime-configure.json", `"format": 1,`, `"format": 1, "restartDue": true,`)),
	}
}

// testReport checks that the file of --report has its parts, and no secret.
func (n *doctorNode) testReport(token string) {
	defer add("ours/shim.log", "level=error msg=\"token "+token+" password=SECRET-log\" Authorization: Bearer SECRET-bearer\nlevel=info msg=well\n")(n)()
	file := n.path("report.json")
	if status, _, stderr := call(n, n.doctor("--report", file)); status != 0 || !strings.Contains(stderr, file) {
		n.Fatalf("status %d: %s", status, stderr)
	}
	info, err := os.Stat(file)
	testutil.NoError(n, err)
	text := n.read("report.json")
	if strings.Contains(text, "SECRET-") || strings.Contains(text, token) || info.Mode().Perm() != 0o600 {
		n.Errorf("mode %v; it has a secret:\n%s", info.Mode(), text)
	}
	version := strings.Fields(n.must(n.dxctl("--version")))[2] // after the name and "version"
	for _, want := range []string{`"findings": []`, `"instanceID": "GPU-0"`, `"injection": [`, "msg=well", version} {
		if !strings.Contains(text, want) {
			n.Errorf("no %s in\n%s", want, text)
		}
	}
	if status, _, stderr := call(n, n.doctor("--report", file)); status != 2 || !strings.Contains(stderr, "exists") {
		n.Errorf("again: status %d: %s", status, stderr)
	}
}
