//go:build e2e && linux

package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/shimfile"
	"directx-nri/test/bed"
	"directx-nri/test/bed/fakekubelet"
)

const containerdConfig = `version = 2
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

const inventory = `apiVersion: directx.microsoft.com/v1alpha1
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

const configYAML = `apiVersion: directx.microsoft.com/v1alpha1
kind: Configuration
# password: SECRET-config-comment
replicas: 2
inventory: DIR/etc/gpus.yaml
shim:
  runtime: containerd-shim-runc-v2
`

// node is a machine with our real NRI plugin, shim and advertiser, and a stand-in
// for the kubelet, whose directory could not be moved.
type node struct {
	*bed.Machine
	kubelet            *fakekubelet.Kubelet
	plugin, advertiser *bed.Process
}

// newNode sets a node up as the README says.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Machine: bed.NewMachine(t, bed.MachineOptions{Parts: bed.Containerds(t)[bed.Containerd1], Config: containerdConfig})}
	for _, dir := range []string{"bin", "conf.d", "kubelet"} {
		n.check(os.MkdirAll(n.Path(dir), 0o755))
	}
	n.check(errors.Join(os.Mkdir(n.Path("etc"), 0o700), os.Chmod(n.Dir, 0o755)))
	n.Write("lib/libgpu.so", "", 0o644)
	n.Write("etc/gpus.yaml", n.Text(inventory), 0o644)
	n.Write("etc/config.yaml", n.Text(configYAML), 0o600)
	n.plugin = n.process("directx-nri", "--nri-socket", n.Path("nri.sock"))
	n.advertiser = n.process("directx-advertiser", "--config", n.Path("etc/config.yaml"), "--kubelet-dir", n.Path("kubelet"),
		"--pod-resources-socket", n.Path("pr.sock"), "--cri-socket", n.Socket())
	n.dxctl("runtime", "install", "--to", n.Path("bin"), "--state-dir", n.Path("ours"))
	n.dxctl(append([]string{"runtime", "configure", "--config", n.Path("config.toml"), "--cri-socket", n.Socket(), "--state-dir", n.Path("ours"),
		"--shim", n.shim()}, n.RestartFlags()...)...)
	n.startKubelet()
	t.Cleanup(func() { n.kubelet.Stop() })
	n.plugin.Start(t)
	n.advertiser.Start(t)
	return n
}

// process returns one of our programs, which ends with the test.
func (n *node) process(name string, args ...string) *bed.Process {
	p := bed.NewProcess(name, n.Path(name+".log"), func() *exec.Cmd {
		return exec.Command(bed.Program(n, name), append(args, "--state-dir", n.Path("ours"), "--runtime-dir", n.Path("run"))...)
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

func (n *node) shim() string { return n.Path("bin/" + shimfile.Base) }

func (n *node) check(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) restart() { n.Service("start") }

func (n *node) startKubelet() {
	n.Helper()
	var err error
	n.kubelet, err = fakekubelet.Start(n.Path("kubelet"), n.Path("pr.sock"))
	n.check(err)
}

// dxctl runs dxctl, which must succeed.
func (n *node) dxctl(args ...string) {
	n.Helper()
	command := exec.Command(bed.Program(n, "dxctl"), args...)
	command.Env = n.environment()
	if status, stdout, stderr := n.Call(command); status != 0 {
		n.Fatalf("dxctl %v: status %d: %s%s", args, status, stdout, stderr)
	}
}

func (n *node) environment() []string {
	return append(os.Environ(), "PATH="+n.Parts+":"+os.Getenv("PATH"), "DIRECTX_SECRET=SECRET-variable")
}

// doctorArgs are the flags that say where things are on the node.
func (n *node) doctorArgs(more ...string) []string {
	return append([]string{
		"doctor", "--config", n.Path("config.toml"), "--cri-socket", n.Socket(), "--state-dir", n.Path("ours"), "--runtime-dir", n.Path("run"),
		"--kubelet-dir", n.Path("kubelet"), "--pod-resources-socket", n.Path("pr.sock"), "--shim", n.shim(),
	}, more...)
}

// doctor runs dxctl doctor.
func (n *node) doctor(more ...string) (status int, stdout, stderr string) {
	n.Helper()
	return n.doctorAs(nil, more...)
}

func (n *node) doctorAs(user *syscall.Credential, more ...string) (status int, stdout, stderr string) {
	n.Helper()
	command := exec.Command(bed.Program(n, "dxctl"), n.doctorArgs(more...)...)
	command.Env = n.environment()
	command.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	return n.Call(command)
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

// limit and findingLimit allow for a busy machine.
const (
	limit        = time.Minute
	findingLimit = 20 * time.Second
)

// waitHealthy waits until doctor reports no problem.
func (n *node) waitHealthy() {
	n.Helper()
	bed.Eventually(n, limit, "a healthy node", func() error {
		if status, r := n.report(); status != 0 {
			return fmt.Errorf("status %d: %+v", status, r.Findings)
		}
		return nil
	})
}

// waitFinding waits until there is exactly one finding, of check, whose object or problem
// contains says.
func (n *node) waitFinding(t *testing.T, check, says string, more ...string) {
	t.Helper()
	bed.Eventually(t, findingLimit, check, func() error {
		status, r := n.report(more...)
		if len(r.Findings) != 1 || status != 1 || r.Result != doctor.Findings || r.Findings[0].Check != check || !strings.Contains(r.Findings[0].Object+" "+r.Findings[0].Problem, says) {
			return fmt.Errorf("status %d, %+v; want one finding of %s that says %q", status, r.Findings, check, says)
		}
		return nil
	})
}
