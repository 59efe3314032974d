//go:build e2e && linux

// Package runtimeconfig runs 'dxctl runtime' against real containerds. It needs
// root.
package runtimeconfig

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/shimfile"
	"directx-nri/test/bed"
)

// node is a machine with a program in the shim's place, which nothing runs here.
type node struct{ *bed.Machine }

// startNode starts a containerd with a configuration; "" is none.
func startNode(t *testing.T, parts, config string) *node {
	t.Helper()
	return newNode(t, bed.MachineOptions{Parts: parts, Config: config, Isolated: true})
}

// keptNode starts a containerd that is started again whenever it ends, as systemd
// does.
func keptNode(t *testing.T, parts, config string) *node {
	t.Helper()
	return newNode(t, bed.MachineOptions{Parts: parts, Config: config, Isolated: true, Kept: true})
}

func newNode(t *testing.T, options bed.MachineOptions) *node {
	t.Helper()
	n := &node{bed.NewMachine(t, options)}
	n.Write(shimfile.Base, "#!/bin/sh\necho "+shimfile.Base+" test\n", 0o755)
	return n
}

func (n *node) shim() string { return n.Path(shimfile.Base) }

// flags are those of a command of 'dxctl runtime' for this node, with containerd's
// socket.
func (n *node) flags(socket string, args ...string) []string {
	all := append([]string{"runtime", args[0], "--config", n.Path("config.toml"), "--cri-socket", socket}, args[1:]...)
	if args[0] != "status" {
		all = append(all, "--state-dir", n.Path("ours"))
	}
	if args[0] == "configure" && !slices.Contains(args, "--no-shim") {
		all = append(all, "--shim", n.shim())
	}
	return all
}

// dxctl runs a command of 'dxctl runtime'.
func (n *node) dxctl(args ...string) (status int, stdout, stderr string) {
	n.Helper()
	return n.Call(exec.Command(bed.Program(n, "dxctl"), n.flags(n.Socket(), args...)...))
}

func (n *node) must(args ...string) (stdout string) {
	n.Helper()
	status, stdout, stderr := n.dxctl(args...)
	if status != 0 {
		n.Fatalf("%v: status %d: %s%s", args, status, stdout, stderr)
	}
	return stdout
}

// mustRestart is must for a command that restarts containerd.
func (n *node) mustRestart(args ...string) string {
	n.Helper()
	return n.must(append(args, n.RestartFlags()...)...)
}

func (n *node) config() string { return n.Read("config.toml") }

func (n *node) mustHaveConfig(want, when string) {
	n.Helper()
	if diff := cmp.Diff(want, n.config()); diff != "" {
		n.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

var bySignal = []string{"--restart", "--restart-mode", "signal", "--restart-timeout", "30s"}

// mustSignal is must for a command that makes containerd end, so that it is
// started again. containerd must have been started so many times afterwards.
func (n *node) mustSignal(starts int, args ...string) {
	n.Helper()
	n.must(append(args, bySignal...)...)
	n.mustHaveStarted(starts, strings.Join(args, " "))
}

func (n *node) mustHaveStarted(want int, when string) {
	n.Helper()
	if got := strings.Count(n.Read("starts"), "start"); got != want {
		n.Errorf("%s: containerd was started %d times, want %d", when, got, want)
	}
}

const nriOff = "NRI interface is disabled"

// TestRestartBySignal ends a containerd that is started again by itself, no more
// often than necessary.
func TestRestartBySignal(t *testing.T) {
	t.Parallel()
	for name, containerd := range bed.Containerds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// NRI is on by default in containerd 2.
			const config = "version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\n  disable = true # mine\n"
			n := keptNode(t, containerd, config)
			logged := n.ContainerdLog()
			n.mustSignal(2, "configure", "--no-shim")
			if log := n.ContainerdLog()[len(logged):]; strings.Contains(log, nriOff) {
				t.Errorf("NRI is off:\n%s", log)
			}
			n.mustSignal(2, "configure", "--no-shim")

			n.mustSignal(3, "unconfigure")
			n.mustSignal(3, "unconfigure")
			n.mustHaveConfig(config, "the file")

			// As if interrupted before the restart.
			n.must("configure", "--no-shim")
			n.mustHaveStarted(3, "configured without a restart")
			n.mustSignal(4, "configure", "--no-shim")
			n.mustSignal(5, "configure")
			if got := n.Handlers()["runc"].RuntimePath; got != n.shim() {
				t.Errorf("runtime_path %q", got)
			}
			n.mustSignal(6, "unconfigure")
		})
	}
}

// TestInterruptedUnconfigure finds the old file back, but containerd not restarted
// and the record of the change still there.
func TestInterruptedUnconfigure(t *testing.T) {
	t.Parallel()
	const config = "version = 2\n# mine\n"
	n := keptNode(t, bed.Containerds(t)[bed.Containerd1], config)
	n.must(append([]string{"configure", "--no-shim"}, bySignal...)...)
	n.Write("config.toml", config, 0o640)
	n.mustSignal(3, "unconfigure")
}

// TestSignalRollback puts the old file back when containerd does not start with
// the new one.
func TestSignalRollback(t *testing.T) {
	t.Parallel()
	const config = "version = 2\n# mine\n"
	n := keptNode(t, bed.Containerds(t)[bed.Containerd1], config)
	n.Write("refuse", "directx.microsoft.com\n", 0o644)
	status, _, stderr := n.dxctl("configure", "--restart", "--restart-mode", "signal", "--restart-timeout", "3s")
	if status != 1 || !strings.Contains(stderr, n.Path("config.toml")) {
		t.Errorf("status %d: %s", status, stderr)
	}
	n.mustHaveConfig(config, "the file")
	if got := n.Handlers()["runc"].RuntimePath; got != "" {
		t.Errorf("runtime_path %q", got)
	}
	n.mustHaveStarted(2, "the old file is back")

	// The kubelet runs an init container that failed once more.
	again := []string{"configure", "--restart", "--restart-mode", "signal", "--restart-timeout", "3s"}
	if status, _, stderr = n.dxctl(again...); status != 1 || !strings.Contains(stderr, n.Path("ours/configure-failed.json")) {
		t.Errorf("status %d: %s", status, stderr)
	}
	n.mustHaveStarted(2, "the same again")
	if err := errors.Join(os.Remove(n.Path("refuse")), os.Remove(n.Path("ours/configure-failed.json"))); err != nil {
		t.Fatal(err)
	}
	n.mustSignal(3, "configure")
}

// TestSignalWithoutService has nothing that starts containerd again.
func TestSignalWithoutService(t *testing.T) {
	t.Parallel()
	n := startNode(t, bed.Containerds(t)[bed.Containerd1], "version = 2\n# mine\n")
	status, _, stderr := n.dxctl("configure", "--restart", "--restart-mode", "signal", "--restart-timeout", "2s")
	if status != 1 || !strings.Contains(stderr, "signal") {
		t.Errorf("status %d: %s", status, stderr)
	}
	n.mustHaveConfig("version = 2\n# mine\n", "the file")
}

// TestSignalToAnother has another process listen in front of containerd, and then
// containerd's process out of sight: nothing is changed.
func TestSignalToAnother(t *testing.T) {
	t.Parallel()
	const config = "version = 2\n# mine\n"
	n := keptNode(t, bed.Containerds(t)[bed.Containerd1], config)
	unchanged := func(want string, status int, stderr string) {
		t.Helper()
		if status != 1 || !strings.Contains(stderr, want) {
			t.Errorf("status %d: %s, want %q", status, stderr, want)
		}
		n.mustHaveConfig(config, "the file")
		n.mustHaveStarted(1, want)
	}
	front := n.Path("proxy")
	proxy(t, front, n.Socket())
	dxctl := bed.Program(n, "dxctl")
	status, _, stderr := n.Call(exec.Command(dxctl, append(n.flags(front, "configure"), bySignal...)...))
	unchanged("runtimeconfig.t", status, stderr)

	// In a pod without hostPID.
	args := slices.Concat([]string{"--pid", "--fork", "--mount-proc", dxctl}, n.flags(n.Socket(), "configure"), bySignal)
	status, _, stderr = n.Call(exec.Command("unshare", args...))
	unchanged("hostPID", status, stderr)
}

// proxy forwards connections to the socket from to the socket to.
func proxy(t *testing.T, from, to string) {
	t.Helper()
	listener, err := net.Listen("unix", from)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		group.Wait()
	})
	group.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				group.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				})
			}
		}
	})
}

func configDefault(t *testing.T, parts string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(parts, "containerd"), "config", "default").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestConfigureAndBack configures each containerd in each kind of file, and
// restores what was there before.
func TestConfigureAndBack(t *testing.T) {
	t.Parallel()
	for name, containerd := range bed.Containerds(t) {
		files := map[string]string{
			"missing":    "",
			"default":    configDefault(t, containerd),
			"version 2":  "version = 2\n# empty otherwise\n",
			"no version": "oom_score = 0\n",
			"own handler": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  default_runtime_name = \"mine\"\n" +
				"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.mine]\n  runtime_type = \"io.containerd.runc.v2\"\n  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.mine.options]\n    SystemdCgroup = true\n",
		}
		if name == bed.Containerd2 {
			files["version 3"] = "version = 3\r\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\r\nSystemdCgroup = true\r\n"
		}
		for kind, config := range files {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				n := startNode(t, containerd, config)
				before, logged := n.Handlers(), n.ContainerdLog()
				if kind == "version 2" && name == bed.Containerd1 && !strings.Contains(logged, nriOff) {
					t.Errorf("NRI was not off, or containerd words it differently:\n%s", logged)
				}
				n.mustRestart("configure")
				if err := n.Loaded().Check(); errors.Is(err, containerdconfig.ErrNotRouted) != (name == bed.Containerd2) {
					t.Errorf("pods go through the shim: %v", err)
				}
				after := n.Handlers()
				if len(after) != len(before) {
					t.Errorf("handlers were %v and are %v", before, after)
				}
				for name, was := range before {
					want := was
					want.RuntimePath = n.shim()
					want.PodAnnotations = append(want.PodAnnotations, "directx.microsoft.com/*")
					want.ContainerAnnotations = append(want.ContainerAnnotations, "directx.microsoft.com/*")
					if diff := cmp.Diff(want, after[name], cmpopts.IgnoreUnexported(want)); diff != "" {
						t.Errorf("%s (-want +got):\n%s", name, diff)
					}
				}
				var status struct{ Containerd struct{ NRI bool } }
				if err := json.Unmarshal([]byte(n.must("status", "-o", "json")), &status); err != nil || !status.Containerd.NRI {
					t.Errorf("status %+v, %v", status, err)
				}
				if log := n.ContainerdLog()[len(logged):]; strings.Contains(log, nriOff) {
					t.Errorf("NRI is off:\n%s", log)
				}
				configured := n.config()
				n.mustRestart("configure")
				n.mustHaveConfig(configured, "a second time")
				n.mustRestart("unconfigure")
				n.mustHaveConfig(config, "unconfigured")
				if diff := cmp.Diff(before, n.Handlers(), cmpopts.IgnoreUnexported(containerdconfig.Handler{})); diff != "" {
					t.Errorf("unconfigured (-want +got):\n%s", diff)
				}
				left, err := filepath.Glob(n.Path("*"))
				if err != nil || strings.Contains(strings.Join(left, " "), "directx-nri") || strings.Contains(strings.Join(left, " "), "/ours") {
					t.Errorf("left behind: %v", left)
				}
				if status, _, _ := n.dxctl("status"); status != 1 {
					t.Errorf("status ends with %d", status)
				}
			})
		}
	}
}

// TestRollback restores the old file when containerd runs without the handlers.
func TestRollback(t *testing.T) {
	const config = "version = 2\n# mine\n"
	n := startNode(t, bed.Containerds(t)[bed.Containerd1], config)
	status, _, stderr := n.dxctl("configure", "--restart", "--restart-command", "true", "--restart-timeout", "2s")
	if status != 1 || !strings.Contains(stderr, n.Path("config.toml")) {
		t.Errorf("status %d: %s", status, stderr)
	}
	n.mustHaveConfig(config, "the file")
	if got := n.Handlers()["runc"].RuntimePath; got != "" {
		t.Errorf("runtime_path %q", got)
	}
	n.must("unconfigure")
}
