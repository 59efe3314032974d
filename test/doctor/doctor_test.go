//go:build e2e && linux

// Package doctor runs 'dxctl doctor' on a node of real parts: containerd, our
// NRI plugin, shim and advertiser. It breaks one thing after the other, and wants
// each one named and nothing else. It needs root.
package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/allocation"
	"directx-nri/internal/shimfile"
	"directx-nri/test/bed"
)

// break is one way to break a node, and to fix it.
type breakage struct {
	name string
	do   func(*node)
	fix  func(*node)
	// check and says are the finding.
	check, says string
	flags       []string
}

func TestDoctor(t *testing.T) {
	n := newNode(t)
	n.waitHealthy()
	status, stdout, stderr := n.doctor()
	if status != 0 || strings.Count(stdout, "\n") != 1 || stderr != "" {
		t.Errorf("on a sound node: status %d\n%s%s", status, stdout, stderr)
	}
	_, response, err := n.kubelet.Allocate(t.Context(), "directx.microsoft.com/display", 1)
	n.check(err)
	token := response.GetEnvs()["DIRECTX_ALLOCATION_DISPLAY"]
	n.waitHealthy()
	testReport(n, token)
	record := "ours/allocations/" + string(allocation.Token(token).ID()) + ".json"
	for _, b := range breakages(n, record) {
		t.Run(strings.ReplaceAll(b.name, " ", "-"), func(t *testing.T) {
			b.do(n)
			defer b.fix(n)
			n.waitFinding(t, b.check, b.says, b.flags...)
		})
		n.waitHealthy()
	}
	t.Run("without-permission", func(t *testing.T) {
		status, stdout, stderr := n.doctorAs(&syscall.Credential{Uid: 65534, Gid: 65534})
		if status != 2 || strings.Contains(stdout, "problem ") || !strings.Contains(stdout, n.Path("s")) {
			t.Errorf("status %d\n%s%s", status, stdout, stderr)
		}
	})
}

// edited returns a breakage of a text file.
func edited(n *node, file, old, text string) (do, fix func(*node)) {
	var before string
	return func(n *node) {
			before = n.Read(file)
			if !strings.Contains(before, old) {
				n.Fatalf("%s has no %q:\n%s", file, old, before)
			}
			n.rewrite(file, strings.Replace(before, old, text, 1))
		}, func(n *node) {
			n.rewrite(file, before)
		}
}

// rewrite puts another file in the place of one.
func (n *node) rewrite(file, text string) {
	n.Helper()
	info, err := os.Stat(n.Path(file))
	n.check(err)
	n.Write(file+".next", text, info.Mode().Perm())
	n.check(os.Rename(n.Path(file+".next"), n.Path(file)))
}

func moved(file string) (do, fix func(*node)) {
	return func(n *node) { n.check(os.Rename(n.Path(file), n.Path(file)+".away")) },
		func(n *node) { n.check(os.Rename(n.Path(file)+".away", n.Path(file))) }
}

func opened(file string, perm os.FileMode) (do, fix func(*node)) {
	var before os.FileMode
	return func(n *node) {
			info, err := os.Stat(n.Path(file))
			n.check(err)
			before = info.Mode().Perm()
			n.check(os.Chmod(n.Path(file), perm))
		}, func(n *node) {
			n.check(os.Chmod(n.Path(file), before))
		}
}

func made(file string) (do, fix func(*node)) {
	return func(n *node) { n.Write(file, "{}", 0o600) }, func(n *node) { n.check(os.Remove(n.Path(file))) }
}

func breakages(n *node, record string) []breakage {
	var all []breakage
	add := func(name, check, says string, do, fix func(*node), flags ...string) {
		all = append(all, breakage{name, do, fix, check, says, flags})
	}
	edit := func(name, check, says, file, old, text string) {
		do, fix := edited(n, file, old, text)
		add(name, check, says, do, fix)
	}
	// editLoaded is edit of containerd's file, which containerd then reads.
	editLoaded := func(name, check, says, old, text string) {
		do, fix := edited(n, "config.toml", old, text)
		add(name, check, says, func(n *node) { do(n); n.restart() }, func(n *node) { fix(n); n.restart() })
	}

	edit("a GPU is unhealthy", doctor.CheckDevices, "it overheated", "etc/gpus.yaml", "compute: true", "compute: true\n  health: {reason: it overheated}")
	edit("the inventory is broken", doctor.CheckConfig, "gpus.yaml", "etc/gpus.yaml", "kind: Inventory", "kind: Inventory\nsecretKey: 1")
	do, fix := moved("lib/libgpu.so")
	add("a driver file is gone", doctor.CheckFiles, "lib/libgpu.so", do, fix)
	edit("config.yaml is invalid", doctor.CheckConfig, "unknown", "etc/config.yaml", "shim:", "unknown: 1\nshim:")
	edit("no rule is for the GPUs", doctor.CheckResources, "GPU-0", "etc/config.yaml", "shim:",
		"resources: [{name: example.com/other, match: {description: none}}]\nshim:")
	edit("a host directory is gone", doctor.CheckPermissions, "/srv/no-such-directory", "etc/config.yaml", "shim:",
		"extraMounts: {sources: host-directories, hostDirectories: [/srv/no-such-directory]}\nshim:")
	do, fix = opened("etc/config.yaml", 0o666)
	add("others can write config.yaml", doctor.CheckPermissions, "", do, fix)
	edit("the real shim is gone", doctor.CheckShim, "no-such-shim", "etc/config.yaml", "containerd-shim-runc-v2", "no-such-shim")

	do, fix = moved("bin/containerd-shim-directx-v1")
	add("the shim is gone", doctor.CheckShim, "runc", do, fix)
	add("the shim is of another version", doctor.CheckShim, "0.9-test",
		func(n *node) {
			n.check(bed.Build(n.Path("old"), "0.9-test", shimfile.Base))
			n.putShim(n.Path("old/" + shimfile.Base))
		}, (*node).restoreShim)
	add("the shim is damaged", doctor.CheckShim, "", func(n *node) { n.rewrite("bin/containerd-shim-directx-v1", "no program") }, (*node).restoreShim)
	do, fix = opened("bin/containerd-shim-directx-v1", 0o644)
	add("the shim is not executable", doctor.CheckShim, "executable", do, fix)
	do, fix = opened("bin/containerd-shim-directx-v1", 0o777)
	add("others can write the shim", doctor.CheckPermissions, "", do, fix)
	editLoaded("runtime_path leads nowhere", doctor.CheckShim, "/nowhere/", n.shim(), "/nowhere/containerd-shim-directx-v1")
	editLoaded("annotations are not handed on", doctor.CheckHandlers, "directx.microsoft.com", `pod_annotations = ['directx.microsoft.com/*']`, `pod_annotations = []`)
	edit("the file is not loaded", doctor.CheckHandlers, "other", "config.toml", "[plugins.\"io.containerd.nri.v1.nri\"]",
		"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other]\n  runtime_type = \"io.containerd.runc.v2\"\n  runtime_path = \""+n.shim()+"\"\n"+
			"  pod_annotations = [\"directx.microsoft.com/*\"]\n  container_annotations = [\"directx.microsoft.com/*\"]\n[plugins.\"io.containerd.nri.v1.nri\"]")
	edit("containerd's file is no TOML", doctor.CheckFile, "config.toml:1:", "config.toml", "version = 2", "version == 2")
	add("an import takes over", doctor.CheckFile, "conf.d/x.toml", func(n *node) {
		n.Write("conf.d/x.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n", 0o644)
	}, func(n *node) { n.check(os.Remove(n.Path("conf.d/x.toml"))) })
	editLoaded("NRI is off", doctor.CheckNRI, "disabled", "disable = false", "disable = true")
	edit("NRI is off and that is not loaded", doctor.CheckNRI, "disabled", "config.toml", "disable = false", "disable = true")

	add("containerd is stopped", doctor.CheckContainerd, "", func(n *node) { n.Service("stop") }, (*node).restart)
	add("containerd hangs", doctor.CheckContainerd, "", func(n *node) { n.signalContainerd(syscall.SIGSTOP) }, func(n *node) { n.signalContainerd(syscall.SIGCONT) }, "--timeout", "1s")
	add("the plugin is stopped", doctor.CheckNRI, "", func(n *node) { n.plugin.Stop(n) }, func(n *node) { n.plugin.Start(n) })
	add("the plugin hangs", doctor.CheckNRI, "", func(n *node) { n.plugin.Freeze(n) }, func(n *node) { n.plugin.Thaw(n) })
	add("the advertiser is stopped", doctor.CheckAdvertiser, "", func(n *node) { n.advertiser.Stop(n) }, func(n *node) { n.advertiser.Start(n) })
	add("the kubelet is stopped", doctor.CheckKubelet, "", func(n *node) { n.kubelet.Stop() }, (*node).startKubelet)
	add("the advertiser is not registered", doctor.CheckRegistration, "directx.microsoft.com/display", func(n *node) { n.kubelet.Forget("directx.microsoft.com/display") },
		func(n *node) { n.kubelet.Stop(); n.startKubelet() })
	do, fix = moved("pr.sock")
	add("PodResources is elsewhere", doctor.CheckRegistration, "", do, fix)

	edit("a record is damaged", doctor.CheckRecords, filepath.Base(record), record, "GPU-0", "GPU-9")
	do, fix = opened("ours/allocations", 0o777)
	add("the record directory is open to others", doctor.CheckRecords, "", do, fix)
	do, fix = opened("ours", 0o777)
	add("the state directory is open to others", doctor.CheckPermissions, "", do, fix)
	do, fix = opened("run", 0o777)
	add("the runtime directory is open to others", doctor.CheckPermissions, "", do, fix)
	do, fix = made("ours/restart-pending.json")
	add("a restart was broken off", doctor.CheckLeftovers, "", do, fix)
	do, fix = moved("ours/runtime-configure.json")
	add("what was configured is forgotten", doctor.CheckLeftovers, "config.toml", do, fix)
	return all
}

// putShim installs a program as the shim, in one step.
func (n *node) putShim(program string) {
	n.Helper()
	data, err := os.ReadFile(program)
	n.check(err)
	n.rewrite("bin/"+shimfile.Base, string(data))
}

func (n *node) restoreShim() { n.putShim(bed.Program(n, shimfile.Base)) }

func (n *node) signalContainerd(s syscall.Signal) {
	n.Helper()
	n.check(syscall.Kill(n.PID(), s))
}

// testReport checks that the file of --report has its parts, and no secret: there is
// one in each file that can have one.
func testReport(n *node, token string) {
	n.Write("ours/shim.log", "level=error msg=\"token "+token+" password=SECRET-log\" Authorization: Bearer SECRET-bearer\nlevel=info msg=well\n", 0o600)
	defer func() { n.check(os.Remove(n.Path("ours/shim.log"))) }()
	file := n.Path("report.json")
	if status, _, stderr := n.doctor("--report", file); status != 0 || !strings.Contains(stderr, file) {
		n.Fatalf("status %d: %s", status, stderr)
	}
	info, err := os.Stat(file)
	n.check(err)
	text := n.Read("report.json")
	if strings.Contains(text, "SECRET-") || strings.Contains(text, token) || info.Mode().Perm() != 0o600 {
		n.Errorf("mode %v; it has a secret:\n%s", info.Mode(), text)
	}
	version := strings.Fields(n.Must(bed.Program(n, "dxctl"), "--version"))[2] // after the name and "version"
	for _, want := range []string{`"findings": []`, "GPU-0::0", `"servedBy"`, "msg=well", version} {
		if !strings.Contains(text, want) {
			n.Errorf("no %s in\n%s", want, text)
		}
	}
	if status, _, stderr := n.doctor("--report", file); status != 2 || !strings.Contains(stderr, "exists") {
		n.Errorf("again: status %d: %s", status, stderr)
	}
}
