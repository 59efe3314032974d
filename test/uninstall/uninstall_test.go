//go:build e2e && linux

// Package uninstall removes and replaces the runtime shim under running
// containers, with the real containerd and runc. It needs root.
package uninstall

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"directx-nri/internal/shimfile"
	"directx-nri/test/bed"
)

const realShim = "containerd-shim-runc-v2"

// original is a containerd configuration with comments.
const original = `version = 2
# mine
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2" # the usual one
[plugins."io.containerd.nri.v1.nri"]
  disable = true
  socket_path = "DIR/nri.sock" # not the default
  plugin_path = "DIR/nri"
  plugin_config_path = "DIR/nri"
`

// node is a machine with containers made by ctr.
type node struct {
	*bed.Machine
	// namespace is containerd's. runc's directory for it is shared by all containerds.
	namespace string
}

func newNode(t *testing.T, parts string) *node {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		bed.Skip(t, fmt.Sprintf("%v: run test/parts/build.sh", err))
	}
	n := &node{bed.NewMachine(t, bed.MachineOptions{Parts: parts, Config: original}),
		fmt.Sprintf("uninstall-%d-%x", os.Getpid(), crc32.ChecksumIEEE([]byte(t.Name())))}
	for _, applet := range []string{"sleep", "true"} {
		n.CopyProgram(busybox, "rootfs/bin/"+applet)
	}
	for _, dir := range []string{"rootfs/proc", "rootfs/dev", "rootfs/sys", "bin"} {
		if err := os.MkdirAll(n.Path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.Write("gpus.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: GPU, display: true, linux: {deviceNodes: [/dev/loop-control]}}]\n", 0o644)
	t.Cleanup(func() {
		n.removeTasks()
		_ = os.Remove("/run/containerd/runc/" + n.namespace)
		// runc removes the cgroups of containers only.
		if err := bed.RemoveCgroups("/" + n.namespace); err != nil {
			t.Error(err)
		}
	})
	return n
}

// removeTasks ends the containers, whose shims outlive containerd.
func (n *node) removeTasks() {
	for _, id := range []string{"one", "plain", "later"} {
		_ = exec.Command(filepath.Join(n.Parts, "ctr"), "--address", n.Socket(), "--namespace", n.namespace, "task", "rm", "-f", id).Run()
	}
}

func (n *node) bundle(id string) string {
	return n.Path(filepath.Join("state/io.containerd.runtime.v2.task", n.namespace, id))
}

func (n *node) ctr(args ...string) string {
	n.Helper()
	return n.Must(filepath.Join(n.Parts, "ctr"), append([]string{"--address", n.Socket(), "--namespace", n.namespace}, args...)...)
}

// dxctl runs a command of 'dxctl runtime' on the node.
func (n *node) dxctl(command string, args ...string) (status int, output string) {
	n.Helper()
	all := []string{"runtime", command}
	containerd := []string{"--config", n.Path("config.toml"), "--cri-socket", n.Socket(), "--state-dir", n.Path("ours")}
	switch command {
	case "install":
		n.Write("etc/config.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\ninventory: "+n.Path("gpus.yaml")+
			"\nshim: {runtime: "+filepath.Join(n.Parts, realShim)+"}\n", 0o600)
		n.Must(bed.Program(n, "dxctl"), "config", "apply", "--config", n.Path("etc/config.yaml"), "--state-dir", n.Path("ours"))
		all = append(all, "--to", n.Path("bin"), "--state-dir", n.Path("ours"))
	case "configure":
		all = append(append(all, containerd...), "--shim", n.Path("bin/"+shimfile.Base))
	case "uninstall":
		all = append(append(all, containerd...), "--from", n.Path("bin"),
			"--containerd-state", n.Path("state"), "--runtime-dir", n.Path("run"))
	default:
		all = append(all, containerd...)
	}
	status, stdout, stderr := n.Call(exec.Command(bed.Program(n, "dxctl"), append(all, args...)...))
	return status, stdout + stderr
}

func (n *node) mustDxctl(command string, args ...string) string {
	n.Helper()
	status, output := n.dxctl(command, args...)
	if status != 0 {
		n.Fatalf("dxctl runtime %s %v: status %d: %s", command, args, status, output)
	}
	return output
}

func (n *node) mustRefuse(want, command string, args ...string) {
	n.Helper()
	status, output := n.dxctl(command, args...)
	if status != 1 || !strings.Contains(output, want) {
		n.Errorf("dxctl runtime %s %v: status %d: %s\nwant status 1 and %q", command, args, status, output, want)
	}
	if _, err := os.Stat(n.Path("bin/" + shimfile.Base)); err != nil {
		n.Error(err)
	}
}

// start starts a container that sleeps.
func (n *node) start(id, runtime string, flags ...string) {
	n.Helper()
	n.ctr(append(append([]string{"run", "-d", "--runtime", runtime}, flags...), "--rootfs", n.Path("rootfs"), id, "/bin/sleep", "1000")...)
}

// startOurs starts a container that gets its GPU from the runtime shim.
func (n *node) startOurs(id string) {
	n.Helper()
	n.start(id, "io.containerd.directx.v1", "--annotation", "directx.microsoft.com/visible-devices=all")
	spec, err := os.ReadFile(filepath.Join(n.bundle(id), "config.json"))
	if err != nil || !strings.Contains(string(spec), "/dev/loop-control") {
		n.Fatalf("%s has no GPU: %v", id, err)
	}
}

// tasks returns the process IDs of the running tasks by container.
func (n *node) tasks() map[string]string {
	n.Helper()
	found := map[string]string{}
	for _, line := range strings.Split(n.ctr("task", "ls"), "\n") {
		if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "RUNNING" {
			found[fields[0]] = fields[1]
		}
	}
	return found
}

// killShim kills a container's runc shim, as the kernel does when memory runs
// out, and waits until containerd has cleaned up.
func (n *node) killShim(id string) {
	n.Helper()
	task := n.tasks()[id]
	if shim := bed.FindShim(n.namespace, id); shim == 0 || syscall.Kill(shim, syscall.SIGKILL) != nil {
		n.Fatalf("the shim of %s cannot be killed: process %d", id, shim)
	}
	bed.Eventually(n, 30*time.Second, "containerd cleans up after "+id, func() error {
		if _, running := n.tasks()[id]; running {
			return errors.New("the task is there")
		}
		for _, left := range []string{n.bundle(id), "/proc/" + task} {
			if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s is left", left)
			}
		}
		return nil
	})
	n.ctr("container", "rm", id)
}

// ours lists the files on the node that belong to the product.
func (n *node) ours() []string {
	n.Helper()
	var found []string
	for _, place := range []string{"bin", "ours", "run", "config.toml.directx-nri.bak"} {
		err := filepath.WalkDir(n.Path(place), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && path != n.Path("bin") {
				found = append(found, path)
			}
			return err
		})
		if err != nil {
			n.Fatal(err)
		}
	}
	return found
}

// TestUninstallUnderContainers removes the shim under a container that it
// started, in the documented order.
func TestUninstallUnderContainers(t *testing.T) {
	t.Parallel()
	for version, parts := range bed.Containerds(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, parts)
			n.mustDxctl("install")
			n.mustDxctl("configure", n.RestartFlags()...)
			n.startOurs("one")
			n.start("plain", "io.containerd.runc.v2")
			before := n.tasks()
			if before["one"] == "" || before["plain"] == "" {
				t.Fatalf("running: %v", before)
			}

			n.mustRefuse("dxctl runtime unconfigure", "uninstall", n.RestartFlags()...)
			n.mustDxctl("unconfigure", n.RestartFlags()...)
			n.mustRefuse(n.namespace+"/one", "uninstall")
			output := n.mustDxctl("uninstall", append(n.RestartFlags(), "--purge")...)
			if !strings.Contains(output, n.namespace+"/one") || !strings.Contains(output, filepath.Join(parts, realShim)) || strings.Contains(output, "/plain") {
				t.Errorf("output %q, want container one and its real shim", output)
			}
			if diff := cmp.Diff(before, n.tasks()); diff != "" {
				t.Errorf("running (-before +after):\n%s", diff)
			}
			if left := n.ours(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if diff := cmp.Diff(n.Text(original), n.Read("config.toml")); diff != "" {
				t.Errorf("containerd's configuration (-want +got):\n%s", diff)
			}

			n.ctr("task", "exec", "--exec-id", "x", "one", "/bin/true")
			n.killShim("one")
			n.start("later", "io.containerd.runc.v2")
		})
	}
}

// TestUninstallHolds restores a node as the chart's uninstall pods do: the
// configuration came from a ConfigMap, containerd is restarted by its service, and
// the last container of the pod waits for a signal.
func TestUninstallHolds(t *testing.T) {
	t.Parallel()
	n := newNode(t, bed.Containerds(t)[bed.Containerd1])
	n.Write("volume/config.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\ninventory: "+n.Path("etc/inventory.yaml")+
		"\nshim: {runtime: "+filepath.Join(n.Parts, realShim)+", log: "+n.Path("ours/shim.log")+"}\n", 0o644)
	n.Write("volume/inventory.yaml", n.Read("gpus.yaml"), 0o644)
	dxctl := bed.Program(n, "dxctl")
	n.Must(dxctl, "config", "apply", "--config", n.Path("volume/config.yaml"), "--inventory", n.Path("volume/inventory.yaml"), "--state-dir", n.Path("ours"))
	n.Must(dxctl, "runtime", "install", "--to", n.Path("bin"), "--state-dir", n.Path("ours"))
	n.mustDxctl("configure", n.RestartFlags()...)
	n.startOurs("one")
	n.mustDxctl("unconfigure", n.RestartFlags()...)

	n.Keep()
	t.Cleanup(n.removeTasks)
	args := []string{
		"runtime", "uninstall", "--config", n.Path("config.toml"), "--cri-socket", n.Path("s"), "--state-dir", n.Path("ours"), "--from", n.Path("bin"),
		"--containerd-state", n.Path("state"), "--runtime-dir", n.Path("run"), "--restart", "--restart-mode", "signal", "--purge",
	}
	before := n.tasks()
	if output := n.Must(dxctl, args...); !strings.Contains(output, n.namespace+"/one") {
		t.Errorf("output %q", output)
	}
	if diff := cmp.Diff(before, n.tasks()); diff != "" {
		t.Errorf("running (-before +after):\n%s", diff)
	}
	if left := n.ours(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}

	holds := exec.Command(dxctl, append(args, "--hold")...)
	stdout, err := holds.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holds.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holds.Process.Kill() })
	// The last of two lines says that it waits.
	for lines := bufio.NewReader(stdout); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "waiting") {
			break
		}
	}
	if err := holds.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := holds.Wait(); err != nil {
		t.Errorf("it does not end well: %v", err)
	}
}
