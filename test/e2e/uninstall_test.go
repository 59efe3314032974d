//go:build e2e && linux

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"directx-nri/test/bed"
)

const realShim = "containerd-shim-runc-v2"

// unconfigured is a containerd configuration with comments.
const unconfigured = `version = 2
# mine
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2" # the usual one
[plugins."io.containerd.nri.v1.nri"]
  disable = true
  socket_path = "DIR/nri.sock" # not the default
  plugin_path = "DIR/nri"
  plugin_config_path = "DIR/nri"
`

// busyMachine is a machine with the product and with containers made by ctr.
type busyMachine struct {
	*machine
	// namespace is containerd's. runc's directory for it is shared by all containerds.
	namespace string
}

// newBusyMachine starts a machine, configures the product by files in the directory etc,
// and installs it.
func newBusyMachine(t *testing.T, containerd, etc string) *busyMachine {
	t.Helper()
	n := &busyMachine{machine: newMachine(t, machineOptions{containerd: containerd, config: unconfigured})}
	n.namespace = filepath.Base(n.dir)
	busybox, err := exec.LookPath("busybox")
	bed.Check(t, err)
	for _, applet := range []string{"sleep", "true"} {
		n.write("rootfs/bin/"+applet, string(bed.ReadFile(t, busybox)), 0o755)
	}
	for _, dir := range []string{"rootfs/proc", "rootfs/dev", "rootfs/sys", "bin"} {
		bed.Check(t, os.MkdirAll(n.path(dir), 0o755))
	}
	t.Cleanup(func() {
		n.removeTasks()
		// runc removes the cgroups of containers only.
		if err := bed.RemoveCgroups("/" + n.namespace); err != nil {
			t.Error(err)
		}
	})
	n.write(etc+"/gpus.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: GPU, display: true, linux: {deviceNodes: [/dev/loop-control]}}]\n", 0o644)
	n.write(etc+"/config.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\ninventory: "+n.path("etc/gpus.yaml")+
		"\nshim: {runtime: "+filepath.Join(n.programs, realShim)+", log: "+n.path("ours/shim.log")+"}\n", 0o600)
	n.must(n.dxctl("config", "apply", "--config", n.path(etc+"/config.yaml"), "--inventory", n.path(etc+"/gpus.yaml"), "--state-dir", n.path("ours")))
	n.must(n.runtime("install"))
	n.mustRestart("configure")
	return n
}

// removeTasks ends the containers, whose shims outlive containerd.
func (n *busyMachine) removeTasks() {
	for _, id := range []string{"one", "plain", "later"} {
		_ = n.ctrCommand("task", "rm", "-f", id).Run()
	}
}

func (n *busyMachine) bundle(id string) string {
	return n.path(filepath.Join("state/io.containerd.runtime.v2.task", n.namespace, id))
}

func (n *busyMachine) ctrCommand(args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(n.programs, "ctr"), append([]string{"--address", n.socket(), "--namespace", n.namespace}, args...)...)
}

func (n *busyMachine) ctr(args ...string) string {
	n.Helper()
	return n.must(n.ctrCommand(args...))
}

func (n *busyMachine) mustRefuse(want string, args ...string) {
	n.Helper()
	status, _, stderr := n.call(n.runtime("uninstall", args...))
	if status != 1 || !strings.Contains(stderr, want) {
		n.Errorf("uninstall %v: status %d: %s\nwant status 1 and %q", args, status, stderr, want)
	}
	if _, err := os.Stat(n.shim()); err != nil {
		n.Error(err)
	}
}

// start starts a container that sleeps.
func (n *busyMachine) start(id, runtime string, flags ...string) {
	n.Helper()
	n.ctr(append(append([]string{"run", "-d", "--runtime", runtime}, flags...), "--rootfs", n.path("rootfs"), id, "/bin/sleep", "1000")...)
}

// startOurs starts a container that gets its GPU from the runtime shim.
func (n *busyMachine) startOurs(id string) {
	n.Helper()
	n.start(id, "io.containerd.directx.v1", "--annotation", "directx.microsoft.com/visible-devices=all")
	spec, err := os.ReadFile(filepath.Join(n.bundle(id), "config.json"))
	if err != nil || !strings.Contains(string(spec), "/dev/loop-control") {
		n.Fatalf("%s has no GPU: %v", id, err)
	}
}

// tasks returns the process IDs of the running tasks by container.
func (n *busyMachine) tasks() map[string]string {
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
func (n *busyMachine) killShim(id string) {
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
func (n *busyMachine) ours() (found []string) {
	for _, pattern := range []string{"bin/*", "ours", "run", "config.toml.directx-nri.bak"} {
		files, _ := filepath.Glob(n.path(pattern)) // The patterns are well formed.
		found = append(found, files...)
	}
	return found
}

// TestUninstallUnderContainers removes the shim under a container that it
// started, in the documented order.
func TestUninstallUnderContainers(t *testing.T) {
	t.Parallel()
	for _, version := range []string{containerd1, containerd2} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			n := newBusyMachine(t, version, "etc")
			n.startOurs("one")
			n.start("plain", "io.containerd.runc.v2")
			before := n.tasks()
			if before["one"] == "" || before["plain"] == "" {
				t.Fatalf("running: %v", before)
			}

			n.mustRefuse("dxctl runtime unconfigure", n.restartFlags()...)
			n.mustRestart("unconfigure")
			n.mustRefuse(n.namespace + "/one")
			output := n.mustRestart("uninstall", "--purge")
			if !strings.Contains(output, n.namespace+"/one") || !strings.Contains(output, filepath.Join(n.programs, realShim)) || strings.Contains(output, "/plain") {
				t.Errorf("output %q, want container one and its real shim", output)
			}
			if diff := cmp.Diff(before, n.tasks()); diff != "" {
				t.Errorf("running (-before +after):\n%s", diff)
			}
			if left := n.ours(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if diff := cmp.Diff(n.text(unconfigured), n.read("config.toml")); diff != "" {
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
	n := newBusyMachine(t, containerd1, "volume")
	n.startOurs("one")
	n.mustRestart("unconfigure")

	n.keep()
	t.Cleanup(n.removeTasks)
	uninstall := n.runtime("uninstall", "--restart", "--restart-mode", "signal", "--purge")
	before := n.tasks()
	if output := n.must(uninstall); !strings.Contains(output, n.namespace+"/one") {
		t.Errorf("output %q", output)
	}
	if diff := cmp.Diff(before, n.tasks()); diff != "" {
		t.Errorf("running (-before +after):\n%s", diff)
	}
	if left := n.ours(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}

	holds := n.dxctl(append(uninstall.Args[1:], "--hold")...)
	stdout, err := holds.StdoutPipe()
	bed.Check(t, err)
	bed.Check(t, holds.Start())
	t.Cleanup(func() { _ = holds.Process.Kill() })
	// The last of two lines says that it waits.
	for lines := bufio.NewReader(stdout); ; {
		line, err := lines.ReadString('\n')
		bed.Check(t, err)
		if strings.Contains(line, "waiting") {
			break
		}
	}
	bed.Check(t, holds.Process.Signal(syscall.SIGTERM))
	if err := holds.Wait(); err != nil {
		t.Errorf("it does not end well: %v", err)
	}
}
