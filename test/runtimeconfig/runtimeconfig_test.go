//go:build e2e && linux

// Package runtimeconfig runs 'dxctl runtime' against real containerds, each with
// folders, sockets and a mount namespace of its own. It needs root.
package runtimeconfig

import (
	"bytes"
	"context"
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
	"time"

	"github.com/google/go-cmp/cmp"

	"directx-nri/internal/crihandlers"
	"directx-nri/internal/shimfile"
	"directx-nri/test/bed"
)

var programs string // the folder of dxctl

func TestMain(m *testing.M) {
	os.Exit(bed.MainWithPrograms(m, &programs, func(folder string) error { return bed.Build(folder, "", "dxctl") }))
}

// containerds returns the programs, by version.
func containerds(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for version, group := range map[string]string{"1.6": "containerd16", "1.7": "bin", "2.x": "containerd2"} {
		found[version] = filepath.Join(bed.PartsDir(t, group, "containerd"), "containerd")
	}
	return found
}

// node is a containerd and what belongs to it, all in one folder.
type node struct {
	folder, config, socket, shim string
}

// supervise is what an init system is here: "start" and "stop" of one program.
// /run and /opt are the program's own, so that sockets and plugins at fixed
// places are nobody else's. It starts nothing when the configuration has the
// word of the file "refuse".
const supervise = `#!/bin/sh
cd "$(dirname "$0")" || exit 1
if [ -s pid ]; then
	kill "$(cat pid)" 2>/dev/null
	while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.05; done
fi
[ "$1" != stop ] || exit 0
if [ -s refuse ] && grep -q -f refuse config.toml; then
	echo "this configuration is refused" >&2
	exit 1
fi
# A file that is named must exist; the default one need not.
config=
[ ! -e config.toml ] || config="--config $PWD/config.toml"
setsid unshare --mount sh -c '
	for folder in /run /opt /etc/containerd; do
		[ ! -d $folder ] || mount -t tmpfs none $folder || exit 1
	done
	exec "$0" "$@"' CONTAINERD $config --root "$PWD/root" --state "$PWD/state" --address "$PWD/s" >>log 2>&1 </dev/null &
echo $! >pid
`

func startNode(t *testing.T, containerd, config string) *node {
	t.Helper()
	folder := t.TempDir()
	n := &node{folder, filepath.Join(folder, "config.toml"), filepath.Join(folder, "s"), filepath.Join(folder, shimfile.Base)}
	write(t, n.shim, "#!/bin/sh\n", 0o755)
	write(t, filepath.Join(folder, "supervise"), strings.Replace(supervise, "CONTAINERD", containerd, 1), 0o755)
	if config != "" {
		write(t, n.config, config, 0o640)
	}
	t.Cleanup(func() { _ = exec.Command(filepath.Join(folder, "supervise"), "stop").Run() })
	if out, err := exec.Command(filepath.Join(folder, "supervise"), "start").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.handlers(t)
	return n
}

func write(t *testing.T, path, text string, perm os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), perm); err != nil {
		t.Fatal(err)
	}
}

// dxctl runs 'dxctl runtime' and returns its exit status and output.
func (n *node) dxctl(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	args = append([]string{"runtime", args[0], "--config", n.config, "--cri-socket", n.socket}, args[1:]...)
	if args[1] != "status" {
		args = append(args, "--state-dir", filepath.Join(n.folder, "ours"))
	}
	if args[1] == "configure" && !strings.Contains(strings.Join(args, " "), "--no-shim") {
		args = append(args, "--shim", n.shim)
	}
	command := exec.Command(filepath.Join(programs, "dxctl"), args...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return command.ProcessState.ExitCode(), out.String(), errs.String()
}

func (n *node) must(t *testing.T, args ...string) string {
	t.Helper()
	status, stdout, stderr := n.dxctl(t, args...)
	if status != 0 {
		log, _ := os.ReadFile(filepath.Join(n.folder, "log"))
		t.Fatalf("%v: status %d: %s%s\ncontainerd:\n%s", args, status, stdout, stderr, log[max(0, len(log)-3000):])
	}
	return stdout
}

func (n *node) restart() []string {
	return []string{"--restart", "--restart-command", filepath.Join(n.folder, "supervise") + " start", "--restart-timeout", "30s"}
}

// keep is what keeps a containerd running, as systemd does: whenever it has ended
// it is started again. Otherwise it is as supervise.
const keep = `#!/bin/sh
cd "$(dirname "$0")" || exit 1
while [ ! -e stop ]; do
	sleep 0.1
	if [ -s refuse ] && grep -q -f refuse config.toml; then
		echo "this configuration is refused" >>log
		continue
	fi
	echo start >>starts
	unshare --mount sh -c '
		for folder in /run /opt /etc/containerd; do
			[ ! -d $folder ] || mount -t tmpfs none $folder || exit 1
		done
		exec "$0" "$@"' CONTAINERD --config "$PWD/config.toml" --root "$PWD/root" --state "$PWD/state" --address "$PWD/s" >>log 2>&1 </dev/null &
	echo $! >pid
	wait $!
done
`

// keptNode starts a containerd that is kept running.
func keptNode(t *testing.T, containerd, config string) *node {
	t.Helper()
	folder := t.TempDir()
	n := &node{folder, filepath.Join(folder, "config.toml"), filepath.Join(folder, "s"), filepath.Join(folder, shimfile.Base)}
	write(t, n.shim, "#!/bin/sh\n", 0o755)
	write(t, filepath.Join(folder, "keep"), strings.Replace(keep, "CONTAINERD", containerd, 1), 0o755)
	write(t, n.config, config, 0o640)
	keeper := exec.Command(filepath.Join(folder, "keep"))
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		write(t, filepath.Join(folder, "stop"), "", 0o644)
		_ = exec.Command("/bin/sh", "-c", "kill $(cat "+filepath.Join(folder, "pid")+")").Run()
		_ = keeper.Wait()
	})
	n.handlers(t)
	return n
}

func bySignal() []string {
	return []string{"--restart", "--restart-mode", "signal", "--restart-timeout", "30s"}
}

// starts returns how often a kept containerd was started.
func (n *node) starts(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.folder, "starts"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "start")
}

// started checks how often containerd was started, and what was done that had it
// be so.
func (n *node) started(t *testing.T, want int, what string) {
	t.Helper()
	if got := n.starts(t); got != want {
		t.Errorf("%s: containerd was started %d times, want %d", what, got, want)
	}
}

const nriOff = "NRI interface is disabled"

// TestRestartBySignal has a containerd, which something keeps running, be told to
// end, and no more often than it has to.
func TestRestartBySignal(t *testing.T) {
	t.Parallel()
	for name, containerd := range containerds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// containerd 2 has it on otherwise.
			const config = "version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\n  disable = true # mine\n"
			n := keptNode(t, containerd, config)
			logged := n.log(t)
			n.must(t, append([]string{"configure", "--no-shim"}, bySignal()...)...)
			n.started(t, 2, "configured")
			if log := n.log(t)[len(logged):]; strings.Contains(log, nriOff) {
				t.Errorf("NRI is off:\n%s", log)
			}
			n.must(t, append([]string{"configure", "--no-shim"}, bySignal()...)...)
			n.started(t, 2, "configured again")

			n.must(t, append([]string{"unconfigure"}, bySignal()...)...)
			n.started(t, 3, "unconfigured")
			n.must(t, append([]string{"unconfigure"}, bySignal()...)...)
			n.started(t, 3, "unconfigured again")
			if diff := cmp.Diff(config, n.text(t)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}

			// Broken off before the restart, as it were.
			n.must(t, "configure", "--no-shim")
			n.started(t, 3, "configured without a restart")
			n.must(t, append([]string{"configure", "--no-shim"}, bySignal()...)...)
			n.started(t, 4, "configured, and not loaded")
			n.must(t, append([]string{"configure"}, bySignal()...)...)
			n.started(t, 5, "the shim too")
			if got := n.handlers(t)["runc"].RuntimePath; got != n.shim {
				t.Errorf("runtime_path %q", got)
			}
			n.must(t, append([]string{"unconfigure"}, bySignal()...)...)
			n.started(t, 6, "unconfigured with the shim")
		})
	}
}

// TestUnconfigureThatWasBrokenOff has the file be back and containerd not
// restarted: the record of what was changed is still there.
func TestUnconfigureThatWasBrokenOff(t *testing.T) {
	t.Parallel()
	const config = "version = 2\n# mine\n"
	n := keptNode(t, containerds(t)["1.7"], config)
	n.must(t, append([]string{"configure", "--no-shim"}, bySignal()...)...)
	write(t, n.config, config, 0o640)
	n.must(t, append([]string{"unconfigure"}, bySignal()...)...)
	n.started(t, 3, "unconfigured at the second attempt")
}

// TestSignalAndContainerdThatDoesNotComeBack puts the old file back.
func TestSignalAndContainerdThatDoesNotComeBack(t *testing.T) {
	t.Parallel()
	const config = "version = 2\n# mine\n"
	n := keptNode(t, containerds(t)["1.7"], config)
	write(t, filepath.Join(n.folder, "refuse"), "directx.microsoft.com\n", 0o644)
	status, _, stderr := n.dxctl(t, "configure", "--restart", "--restart-mode", "signal", "--restart-timeout", "3s")
	if status != 1 || !strings.Contains(stderr, "is back, and containerd runs with it") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if diff := cmp.Diff(config, n.text(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := n.handlers(t)["runc"].RuntimePath; got != "" {
		t.Errorf("runtime_path %q", got)
	}
	n.started(t, 2, "the old file is back")

	// As the kubelet has an init container do that has failed.
	again := []string{"configure", "--restart", "--restart-mode", "signal", "--restart-timeout", "3s"}
	if status, _, stderr = n.dxctl(t, again...); status != 1 || !strings.Contains(stderr, "nothing is changed: containerd did not come back with this") {
		t.Errorf("status %d: %s", status, stderr)
	}
	n.started(t, 2, "the same again")
	if err := os.Remove(filepath.Join(n.folder, "refuse")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(n.folder, "ours", "configure-failed.json")); err != nil {
		t.Fatal(err)
	}
	n.must(t, append([]string{"configure"}, bySignal()...)...)
	n.started(t, 3, "the same, once what kept it from starting is gone")
}

// TestSignalAndNobodyStartsContainerd says what has happened, and what to do.
func TestSignalAndNobodyStartsContainerd(t *testing.T) {
	t.Parallel()
	n := startNode(t, containerds(t)["1.7"], "version = 2\n# mine\n")
	status, _, stderr := n.dxctl(t, "configure", "--restart", "--restart-mode", "signal", "--restart-timeout", "2s")
	if status != 1 || !strings.Contains(stderr, "start it on the node, and do not use --restart-mode signal there") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if got := n.text(t); got != "version = 2\n# mine\n" {
		t.Errorf("the file is\n%s", got)
	}
}

// TestSignalToAnother has somebody else listen in front of containerd, and
// containerd not be seen: nothing is changed then.
func TestSignalToAnother(t *testing.T) {
	t.Parallel()
	const config = "version = 2\n# mine\n"
	n := keptNode(t, containerds(t)["1.7"], config)
	unchanged := func(want string, status int, stderr string) {
		t.Helper()
		if status != 1 || !strings.Contains(stderr, "nothing is changed: ") || !strings.Contains(stderr, want) {
			t.Errorf("status %d: %s, want %q", status, stderr, want)
		}
		if diff := cmp.Diff(config, n.text(t)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		n.started(t, 1, want)
	}
	proxied := *n
	proxied.socket = filepath.Join(n.folder, "proxy")
	proxy(t, proxied.socket, n.socket)
	status, _, stderr := proxied.dxctl(t, append([]string{"configure"}, bySignal()...)...)
	unchanged("is runtimeconfig.t and not containerd: it is left alone", status, stderr)

	// In a pod without hostPID.
	args := append([]string{"--pid", "--fork", "--mount-proc", filepath.Join(programs, "dxctl"), "runtime", "configure", "--config", n.config, "--cri-socket", n.socket, "--shim", n.shim, "--state-dir", filepath.Join(n.folder, "ours")}, bySignal()...)
	out, err := exec.Command("unshare", args...).CombinedOutput()
	if exit := (&exec.ExitError{}); !errors.As(err, &exit) {
		t.Fatalf("%v: %s", err, out)
	} else {
		status = exit.ExitCode()
	}
	unchanged("in a pod set hostPID: true", status, string(out))
}

// proxy has what comes to the socket from go on to the socket to.
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

// handlers returns the handlers that containerd has loaded, by name.
func (n *node) handlers(t *testing.T) map[string]crihandlers.Handler {
	t.Helper()
	byName := map[string]crihandlers.Handler{}
	for _, h := range n.loaded(t).Handlers {
		byName[h.Name] = h
	}
	return byName
}

// loaded waits for containerd and returns what it has loaded.
func (n *node) loaded(t *testing.T) crihandlers.Loaded {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	connection, err := crihandlers.Dial(n.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	for {
		loaded, err := crihandlers.Load(ctx, connection)
		if err == nil {
			return loaded
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(n.folder, "log"))
			t.Fatalf("%v\n%s", err, log)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (n *node) text(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(n.config)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

// log returns what containerd has logged.
func (n *node) log(t *testing.T) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(n.folder, "log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
}

func configDefault(t *testing.T, containerd string) string {
	t.Helper()
	out, err := exec.Command(containerd, "config", "default").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestConfigureAndBack has each real containerd load what is configured in each
// kind of file, and then what was there before.
func TestConfigureAndBack(t *testing.T) {
	t.Parallel()
	for name, containerd := range containerds(t) {
		files := map[string]string{
			"missing":    "",
			"default":    configDefault(t, containerd),
			"version 2":  "version = 2\n# empty otherwise\n",
			"no version": "oom_score = 0\n",
			"own handler": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  default_runtime_name = \"mine\"\n" +
				"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.mine]\n  runtime_type = \"io.containerd.runc.v2\"\n  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.mine.options]\n    SystemdCgroup = true\n",
		}
		if name == "2.x" {
			files["version 3"] = "version = 3\r\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\r\nSystemdCgroup = true\r\n"
		}
		for kind, config := range files {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				n := startNode(t, containerd, config)
				before, logged := n.handlers(t), n.log(t)
				if kind == "version 2" && name == "1.7" && !strings.Contains(logged, "NRI interface is disabled") {
					t.Errorf("NRI was not off, or is told in other words:\n%s", logged)
				}
				n.must(t, append([]string{"configure"}, n.restart()...)...)
				if err := n.loaded(t).Check(); errors.Is(err, crihandlers.ErrNotRouted) != (name == "2.x") {
					t.Errorf("pods go through the shim: %v", err)
				}
				after := n.handlers(t)
				if len(after) != len(before) {
					t.Errorf("handlers were %v and are %v", before, after)
				}
				for name, was := range before {
					want := was
					want.RuntimePath = n.shim
					want.PodAnnotations = append(want.PodAnnotations, "directx.microsoft.com/*")
					want.ContainerAnnotations = append(want.ContainerAnnotations, "directx.microsoft.com/*")
					if diff := cmp.Diff(want, after[name]); diff != "" {
						t.Errorf("%s (-want +got):\n%s", name, diff)
					}
				}
				var status struct {
					NRI      bool
					Problems []string
				}
				if err := json.Unmarshal([]byte(n.must(t, "status", "-o", "json")), &status); err != nil || !status.NRI {
					t.Errorf("status %+v, %v", status, err)
				}
				if log := n.log(t)[len(logged):]; strings.Contains(log, "NRI interface is disabled") {
					t.Errorf("NRI is off:\n%s", log)
				}
				configured := n.text(t)
				n.must(t, append([]string{"configure"}, n.restart()...)...)
				if diff := cmp.Diff(configured, n.text(t)); diff != "" {
					t.Errorf("a second time (-want +got):\n%s", diff)
				}
				n.must(t, append([]string{"unconfigure"}, n.restart()...)...)
				if diff := cmp.Diff(config, n.text(t)); diff != "" {
					t.Errorf("unconfigured (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(before, n.handlers(t)); diff != "" {
					t.Errorf("unconfigured (-want +got):\n%s", diff)
				}
				left, err := filepath.Glob(filepath.Join(n.folder, "*"))
				if err != nil || strings.Contains(strings.Join(left, " "), "directx-nri") || strings.Contains(strings.Join(left, " "), "/ours") {
					t.Errorf("left behind: %v", left)
				}
				if status, _, _ := n.dxctl(t, "status"); status != 1 {
					t.Errorf("status ends with %d", status)
				}
			})
		}
	}
}

// TestHandlerOfItsOwn adds a handler and leaves the others alone.
func TestHandlerOfItsOwn(t *testing.T) {
	for name, containerd := range containerds(t) {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, containerd, "version = 2\n")
			stdout := n.must(t, append([]string{"configure", "--add-handler"}, n.restart()...)...)
			if !strings.Contains(stdout, "kind: RuntimeClass") || !strings.Contains(stdout, "handler: directx\n") {
				t.Errorf("stdout %q", stdout)
			}
			handlers := n.handlers(t)
			if h := handlers["directx"]; h.RuntimePath != n.shim || h.RuntimeType != handlers["runc"].RuntimeType || len(handlers) != 2 || handlers["runc"].RuntimePath != "" {
				t.Errorf("handlers %+v", handlers)
			}
		})
	}
}

// TestContainerdThatDoesNotComeBack puts the old file back in two cases: the
// service does not start at all, and it starts without the handlers.
func TestContainerdThatDoesNotComeBack(t *testing.T) {
	containerd := containerds(t)["1.7"]
	for name, spoil := range map[string]func(*testing.T, *node) []string{
		"does not start": func(t *testing.T, n *node) []string {
			write(t, filepath.Join(n.folder, "refuse"), "directx.microsoft.com\n", 0o644)
			return n.restart()
		},
		"is not restarted": func(_ *testing.T, _ *node) []string {
			return []string{"--restart", "--restart-command", "true", "--restart-timeout", "2s"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			const config = "version = 2\n# mine\n"
			n := startNode(t, containerd, config)
			status, _, stderr := n.dxctl(t, append([]string{"configure"}, spoil(t, n)...)...)
			if status != 1 || !strings.Contains(stderr, "is back, and containerd runs with it") {
				t.Errorf("status %d: %s", status, stderr)
			}
			if diff := cmp.Diff(config, n.text(t)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := n.handlers(t)["runc"].RuntimePath; got != "" {
				t.Errorf("runtime_path %q", got)
			}
			n.must(t, "unconfigure")
		})
	}
}

// TestImportedHandlers refuses what an imported file would override.
func TestImportedHandlers(t *testing.T) {
	for name, containerd := range containerds(t) {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, containerd, "version = 2\nimports = [\"conf.d/*.toml\"]\n")
			if err := os.Mkdir(filepath.Join(n.folder, "conf.d"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(n.folder, "conf.d", "x.toml"), "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n", 0o644)
			status, _, stderr := n.dxctl(t, "configure")
			if status != 1 || !strings.Contains(stderr, "conf.d/x.toml is imported by") {
				t.Errorf("status %d: %s", status, stderr)
			}
		})
	}
}
