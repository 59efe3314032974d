//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimcheck"
	"github.com/directx-nri/directx-nri/shim/shimfile"
	"github.com/directx-nri/directx-nri/test/bed"
)

// configured is a machine whose containerd dxctl configures, with a program in the
// shim's place that nothing runs.
type configured struct{ *machine }

// newConfigured starts a containerd, which is started again whenever it ends if kept
// is set, as systemd does.
func newConfigured(t *testing.T, containerd, config string, kept bool) *configured {
	t.Helper()
	n := &configured{newMachine(t, machineOptions{containerd: containerd, config: config, isolated: true, kept: kept})}
	n.write("bin/"+shimfile.BaseName, "#!/bin/sh\necho "+shimfile.BaseName+" test\n", 0o755)
	return n
}

func (n *configured) config() string { return n.read("config.toml") }

func (n *configured) mustHaveConfig(want, when string) {
	n.Helper()
	if diff := cmp.Diff(want, n.config()); diff != "" {
		n.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// bySignal makes dxctl restart containerd by a signal. Each test sets how long it waits.
func bySignal(timeout string) []string {
	return []string{"--restart", "--restart-mode", "signal", "--restart-timeout", timeout}
}

// mustSignal runs a command that makes containerd end, so that it is
// started again. containerd must have been started so many times afterwards.
func (n *configured) mustSignal(starts int, command string, args ...string) {
	n.Helper()
	n.must(n.runtime(command, append(args, bySignal("30s")...)...))
	n.mustHaveStarted(starts, command)
}

func (n *configured) mustHaveStarted(want int, when string) {
	n.Helper()
	if got := strings.Count(n.read("starts"), "start"); got != want {
		n.Errorf("%s: containerd was started %d times, want %d", when, got, want)
	}
}

// mustRefuse runs a command that fails and leaves the file as it was.
func (n *configured) mustRefuse(config, want string, command *exec.Cmd) {
	n.Helper()
	if status, _, stderr := call(n, command); status != 1 || !strings.Contains(stderr, want) {
		n.Errorf("%v: status %d: %s, want %q", command.Args, status, stderr, want)
	}
	n.mustHaveConfig(config, "the file")
}

const nriOff = "NRI interface is disabled"

// TestRestartBySignal ends a containerd that is started again by itself, no more
// often than necessary.
func TestRestartBySignal(t *testing.T) {
	t.Parallel()
	for _, name := range []string{containerd1, containerd2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// NRI is on by default in containerd 2.
			const config = "version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\n  disable = true # mine\n"
			n := newConfigured(t, name, config, true)
			logged := n.containerdLog()
			n.mustSignal(2, "configure", "--no-shim")
			if log := n.containerdLog()[len(logged):]; strings.Contains(log, nriOff) {
				t.Errorf("NRI is off:\n%s", log)
			}
			n.mustSignal(2, "configure", "--no-shim")
			n.write("config.toml", n.config()+"# others'\n", 0o640)
			n.mustSignal(2, "configure", "--no-shim")

			n.mustSignal(3, "unconfigure")
			n.mustSignal(3, "unconfigure")
			n.mustHaveConfig(config+"# others'\n", "the file")

			// As if interrupted before the restart.
			n.must(n.runtime("configure", "--no-shim"))
			n.mustHaveStarted(3, "configured without a restart")
			n.mustSignal(4, "configure", "--no-shim")
			n.mustSignal(5, "configure")
			if got := n.handlers()["runc"].RuntimePath; got != n.shim() {
				t.Errorf("runtime_path %q", got)
			}
			// As if interrupted when the old file was back.
			n.write("config.toml", config, 0o640)
			n.mustSignal(6, "unconfigure")
		})
	}
}

// TestSignalRollback puts the old file back when containerd does not start with
// the new one.
func TestSignalRollback(t *testing.T) {
	t.Parallel()
	const config = "version = 2\n# mine\n"
	n := newConfigured(t, containerd1, config, true)
	n.write("refuse", "directx.microsoft.com\n", 0o644)
	n.mustRefuse(config, n.path("config.toml"), n.runtime("configure", bySignal("3s")...))
	if got := n.handlers()["runc"].RuntimePath; got != "" {
		t.Errorf("runtime_path %q", got)
	}
	n.mustHaveStarted(2, "the old file is back")

	// The kubelet runs an init container that failed once more.
	n.mustRefuse(config, "with another --restart-timeout", n.runtime("configure", bySignal("3s")...))
	n.mustHaveStarted(2, "the same again")
	testutil.NoError(t, os.Remove(n.path("refuse")))
	n.mustSignal(3, "configure")
}

// TestSignalWithoutService has nothing that starts containerd again.
func TestSignalWithoutService(t *testing.T) {
	t.Parallel()
	const config = "version = 2\n# mine\n"
	n := newConfigured(t, containerd1, config, false)
	n.mustRefuse(config, "signal", n.runtime("configure", bySignal("2s")...))
}

// TestSignalToAnother has another process listen in front of containerd, and then
// containerd's process out of sight: nothing is changed.
func TestSignalToAnother(t *testing.T) {
	t.Parallel()
	const config = "version = 2\n# mine\n"
	n := newConfigured(t, containerd1, config, true)
	front := n.path("proxy")
	proxy(t, front, n.socket())
	n.mustRefuse(config, filepath.Base(os.Args[0]), n.runtime("configure", append(bySignal("30s"), "--cri-socket", front)...))
	// In a pod without hostPID.
	hidden := n.runtime("configure", bySignal("30s")...)
	n.mustRefuse(config, "hostPID", exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc"}, hidden.Args...)...))
	n.mustHaveStarted(1, "both")
}

// proxy forwards connections to the socket from to the socket to.
func proxy(t *testing.T, from, to string) {
	t.Helper()
	listener, err := net.Listen("unix", from)
	testutil.NoError(t, err)
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

// TestConfigureAndBack configures each containerd in each kind of file, and
// restores what was there before.
func TestConfigureAndBack(t *testing.T) {
	t.Parallel()
	for _, name := range []string{containerd1, containerd2} {
		parts, err := bed.FindParts()
		testutil.NoError(t, err)
		byDefault, err := exec.Command(filepath.Join(programs(parts, name), "containerd"), "config", "default").Output()
		testutil.NoError(t, err)
		files := map[string]string{
			"missing":    "",
			"default":    string(byDefault),
			"version 2":  "version = 2\n# empty otherwise\n",
			"no version": "oom_score = 0\n",
			"own handler": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  default_runtime_name = \"mine\"\n" +
				"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.mine]\n  runtime_type = \"io.containerd.runc.v2\"\n" +
				"  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.mine.options]\n    SystemdCgroup = true\n",
		}
		if name == containerd2 {
			files["version 3"] = "version = 3\r\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\r\nSystemdCgroup = true\r\n"
		}
		for kind, config := range files {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				n := newConfigured(t, name, config, false)
				before, logged := n.handlers(), n.containerdLog()
				if kind == "version 2" && name == containerd1 && !strings.Contains(logged, nriOff) {
					t.Errorf("NRI was not off, or containerd words it differently:\n%s", logged)
				}
				n.mustRestart("configure")
				if err := shimcheck.CheckUsed(n.loaded()); errors.Is(err, shimcheck.ErrNotUsed) != (name == containerd2) {
					t.Errorf("pods go through the shim: %v", err)
				}
				after := n.handlers()
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
				var state struct{ Containerd struct{ NRI bool } }
				out := n.must(n.dxctl("capabilities", "--containerd-config", n.path("config.toml"), "--cri-socket", n.socket(), "-o", "json"))
				if err := json.Unmarshal([]byte(out), &state); err != nil || !state.Containerd.NRI {
					t.Errorf("capabilities %+v, %v", state, err)
				}
				if log := n.containerdLog()[len(logged):]; strings.Contains(log, nriOff) {
					t.Errorf("NRI is off:\n%s", log)
				}
				configured := n.config()
				n.mustRestart("configure")
				n.mustHaveConfig(configured, "a second time")
				n.mustRestart("unconfigure")
				n.mustHaveConfig(config, "unconfigured")
				if diff := cmp.Diff(before, n.handlers(), cmpopts.IgnoreUnexported(containerdconfig.Handler{})); diff != "" {
					t.Errorf("unconfigured (-want +got):\n%s", diff)
				}
				left, err := filepath.Glob(n.path("*"))
				if err != nil || strings.Contains(strings.Join(left, " "), "directx-nri") || strings.Contains(strings.Join(left, " "), "/ours") {
					t.Errorf("left behind: %v", left)
				}
			})
		}
	}
}
