//go:build e2e && linux

package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/shimfile"
	"directx-nri/test/bed"
)

// programs is the folder of our programs, all of version 1.0; below old there is
// a shim of another.
var programs string

const programVersion = "1.0-test"

func TestMain(m *testing.M) {
	os.Exit(bed.MainWithPrograms(m, &programs, func(folder string) error {
		return errors.Join(
			bed.Build(folder, programVersion, "dxctl", "directx-nri", "directx-advertiser", shimfile.Base),
			bed.Build(filepath.Join(folder, "old"), "0.9-test", shimfile.Base))
	}))
}

const realShim = "containerd-shim-runc-v2"

// supervise is what an init system is here.
const supervise = `#!/bin/sh
cd "$(dirname "$0")" || exit 1
if [ -s pid ]; then
	kill "$(cat pid)" 2>/dev/null
	while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.05; done
	: >pid
fi
[ "$1" != stop ] || exit 0
PATH="$PWD/bin:PARTS:$PATH" DIRECTX_NRI_CONFIG="$PWD/etc/config.yaml" setsid PARTS/containerd --config "$PWD/config.toml" \
	--root "$PWD/root" --state "$PWD/state" --address "$PWD/s" >>log 2>&1 </dev/null &
echo $! >pid
`

const containerdConfig = `version = 2
# mine
imports = ["FOLDER/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri".registry.configs."example.com".auth]
  username = "builder"
  password = "SECRET-registry-password"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
  socket_path = "FOLDER/nri.sock" # nobody else's
  plugin_path = "FOLDER/nri"
  plugin_config_path = "FOLDER/nri"
`

const inventory = `apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
# password: SECRET-inventory-comment
devices:
- instanceID: GPU-0
  description: Tesla T4 https://user:SECRET-url@example.com/x?sig=SECRET-query
  display: true
  linux: {deviceNodes: [/dev/loop-control], libraries: [FOLDER/lib/libgpu.so]}
- instanceID: NPU
  compute: true
  linux: {deviceNodes: [/dev/null]}
`

const configYAML = `apiVersion: directx.microsoft.com/v1alpha1
kind: Configuration
# password: SECRET-config-comment
stateDir: FOLDER/ours
inventory: FOLDER/etc/gpus.yaml
shim:
  runtime: containerd-shim-runc-v2
`

// node is a whole node in one folder: the real containerd with our real plugin,
// shim and advertiser, and a stand-in for the kubelet.
type node struct {
	*testing.T
	folder, parts      string
	kubelet            *kubelet
	plugin, advertiser *program
	// metrics and pluginMetrics are the addresses at which these two serve them.
	metrics, pluginMetrics string
}

// newNode sets a node up as the README says.
func newNode(t *testing.T) *node {
	t.Helper()
	bin := bed.PartsDir(t, "bin", "containerd", realShim)
	// Sockets' names are short.
	folder, err := os.MkdirTemp("", "dr")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{T: t, folder: folder, parts: bin, metrics: freeAddress(t), pluginMetrics: freeAddress(t)}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	for _, name := range []string{"bin", "lib", "conf.d", "kubelet", "nri"} {
		n.check(os.MkdirAll(n.path(name), 0o755))
	}
	n.check(os.Mkdir(n.path("etc"), 0o700))
	n.check(os.Chmod(folder, 0o755))
	n.write("lib/libgpu.so", "", 0o644)
	n.write("supervise", strings.ReplaceAll(supervise, "PARTS", bin), 0o755)
	n.write("config.toml", n.text(containerdConfig), 0o640)
	n.write("etc/gpus.yaml", n.text(inventory), 0o644)
	n.write("etc/config.yaml", n.text(configYAML)+"metrics: {address: '"+n.metrics+"', pluginAddress: '"+n.pluginMetrics+"'}\n", 0o600)
	t.Cleanup(func() {
		_ = exec.Command(n.path("supervise"), "stop").Run()
		if t.Failed() {
			log, _ := os.ReadFile(n.path("log"))
			t.Logf("containerd:\n%s", log[max(0, len(log)-4000):])
			for _, name := range []string{"directx-nri", "directx-advertiser"} {
				log, _ := os.ReadFile(n.path(name + ".log"))
				t.Logf("%s:\n%s", name, log[max(0, len(log)-3000):])
			}
		}
	})
	n.supervise("start")
	n.dxctl("runtime", "install", "--to", n.path("bin"), "--shim-config", n.path("etc/config.yaml"), "--runtime", "")
	n.await("containerd", func() error {
		_, err := os.Stat(n.path("s"))
		return err
	})
	n.dxctl("runtime", "configure", "--config", n.path("config.toml"), "--cri-socket", n.path("s"), "--state-dir", n.path("ours"),
		"--shim", n.shim(), "--restart", "--restart-command", n.path("supervise")+" start")
	n.startKubelet()
	t.Cleanup(func() { n.kubelet.stop() })
	n.startPlugin()
	n.startAdvertiser()
	return n
}

// freeAddress returns one that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func (n *node) path(name string) string { return filepath.Join(n.folder, name) }
func (n *node) shim() string            { return n.path("bin/" + shimfile.Base) }
func (n *node) text(s string) string    { return strings.ReplaceAll(s, "FOLDER", n.folder) }

func (n *node) check(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) write(name, text string, perm os.FileMode) {
	n.Helper()
	n.check(os.WriteFile(n.path(name), []byte(text), perm))
	n.check(os.Chmod(n.path(name), perm))
}

func (n *node) read(name string) string {
	n.Helper()
	data, err := os.ReadFile(n.path(name))
	n.check(err)
	return string(data)
}

func (n *node) supervise(what string) {
	n.Helper()
	if out, err := exec.Command(n.path("supervise"), what).CombinedOutput(); err != nil {
		n.Fatalf("%v: %s", err, out)
	}
}

func (n *node) restart() { n.supervise("start") }

func (n *node) startKubelet() {
	n.Helper()
	n.kubelet = startKubelet(n.T, n.path("kubelet"), n.path("pr.sock"))
}

func (n *node) startPlugin() {
	n.Helper()
	n.plugin = n.start("directx-nri", "--config", n.path("etc/config.yaml"), "--inventory", n.path("etc/gpus.yaml"), "--state-dir", n.path("ours"), "--runtime-dir", n.path("run"),
		"--nri-socket", n.path("nri.sock"), "--cri-socket", n.path("s"))
}

func (n *node) startAdvertiser() {
	n.Helper()
	n.advertiser = n.start("directx-advertiser", "--config", n.path("etc/config.yaml"), "--inventory", n.path("etc/gpus.yaml"), "--replicas", "2", "--state-dir", n.path("ours"), "--runtime-dir", n.path("run"),
		"--kubelet-dir", n.path("kubelet"), "--pod-resources-socket", n.path("pr.sock"), "--nri-socket", n.path("nri.sock"))
}

// program is one of ours that runs until it is stopped.
type program struct {
	command *exec.Cmd
	ended   chan struct{}
}

func (n *node) start(name string, args ...string) *program {
	n.Helper()
	log, err := os.OpenFile(n.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	n.check(err)
	defer log.Close()
	p := &program{command: exec.Command(filepath.Join(programs, name), args...), ended: make(chan struct{})}
	p.command.Stderr = log
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	n.check(p.command.Start())
	go func() { // Ends with the program, which the test's end stops.
		defer close(p.ended)
		_ = p.command.Wait()
	}()
	n.Cleanup(p.stop)
	return p
}

func (p *program) signal(s os.Signal) { _ = p.command.Process.Signal(s) }

func (p *program) stop() {
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	<-p.ended
}

// dxctl runs dxctl, which must end well.
func (n *node) dxctl(args ...string) {
	n.Helper()
	command := exec.Command(filepath.Join(programs, "dxctl"), args...)
	command.Env = n.environment()
	if out, err := command.CombinedOutput(); err != nil {
		n.Fatalf("dxctl %v: %v: %s", args, err, out)
	}
}

func (n *node) environment() []string {
	return append(os.Environ(), "PATH="+n.parts+":"+os.Getenv("PATH"), "DIRECTX_SECRET=SECRET-variable")
}

// doctorArgs say where things are on the node.
func (n *node) doctorArgs(more ...string) []string {
	return append([]string{
		"doctor", "--config", n.path("config.toml"), "--cri-socket", n.path("s"), "--shim-config", n.path("etc/config.yaml"), "--runtime-dir", n.path("run"),
		"--nri-socket", n.path("nri.sock"), "--kubelet-dir", n.path("kubelet"), "--pod-resources-socket", n.path("pr.sock"), "--containerd-state", n.path("state"),
		"--shim", n.shim(),
	}, more...)
}

// doctor runs dxctl doctor.
func (n *node) doctor(more ...string) (status int, stdout, stderr string) {
	n.Helper()
	return n.doctorAs(nil, more...)
}

func (n *node) doctorAs(user *syscall.Credential, more ...string) (status int, stdout, stderr string) {
	n.Helper()
	command := exec.Command(filepath.Join(programs, "dxctl"), n.doctorArgs(more...)...)
	command.Env = n.environment()
	command.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		n.Fatal(err)
	}
	return command.ProcessState.ExitCode(), out.String(), errs.String()
}

// report runs dxctl doctor -o json.
func (n *node) report(more ...string) (int, doctor.Report) {
	n.Helper()
	status, stdout, stderr := n.doctor(append([]string{"-o", "json"}, more...)...)
	var r doctor.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		n.Fatalf("status %d: %v\n%s%s", status, err, stdout, stderr)
	}
	return status, r
}

// limit is how long something may take that takes a moment, also on a machine
// that has other things to do.
const (
	limit        = time.Minute
	findingLimit = 20 * time.Second
)

func (n *node) await(what string, check func() error) {
	n.Helper()
	await(n.T, what, limit, check)
}

func await(t *testing.T, what string, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// awaitSound waits until nothing is wrong.
func (n *node) awaitSound() {
	n.Helper()
	n.await("a sound node", func() error {
		if status, r := n.report(); status != 0 {
			return fmt.Errorf("status %d: %+v", status, r.Findings)
		}
		return nil
	})
}

// awaitFinding waits until there is one finding, of check, and it says so.
func (n *node) awaitFinding(t *testing.T, check, says string, more ...string) {
	t.Helper()
	await(t, check, findingLimit, func() error {
		status, r := n.report(more...)
		if len(r.Findings) != 1 || status != 1 || r.Result != doctor.Findings || r.Findings[0].Check != check || !strings.Contains(r.Findings[0].Problem, says) {
			return fmt.Errorf("status %d, %+v; want one finding of %s that says %q", status, r.Findings, check, says)
		}
		return nil
	})
}
