//go:build e2e && linux

// Package uninstall takes the runtime shim away from under containers that run,
// with the real containerd and runc. It needs root.
package uninstall

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"directx-nri/internal/crihandlers"
	"directx-nri/internal/shimfile"
	"directx-nri/test/bed"
)

var programs string // the folder of dxctl and the shim

func TestMain(m *testing.M) {
	os.Exit(bed.MainWithPrograms(m, &programs, func(folder string) error { return bed.Build(folder, "", "dxctl", shimfile.Base) }))
}

// parts returns the folders of containerd, ctr and the runc shim, by version.
func parts(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		"1.7": bed.PartsDir(t, "bin", "containerd", "ctr", realShim),
		"2.x": bed.PartsDir(t, "containerd2", "containerd", "ctr", realShim),
	}
}

const realShim = "containerd-shim-runc-v2"

// supervise is what an init system is here. It leaves the containers alone, as
// one does.
const supervise = `#!/bin/sh
cd "$(dirname "$0")" || exit 1
if [ -s pid ]; then
	kill "$(cat pid)" 2>/dev/null
	while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.05; done
fi
[ "$1" != stop ] || exit 0
PATH="$PWD/bin:PARTS:$PATH" DIRECTX_NRI_CONFIG="$PWD/etc/config.yaml" setsid PARTS/containerd --config "$PWD/config.toml" \
	--root "$PWD/root" --state "$PWD/state" --address "$PWD/s" >>log 2>&1 </dev/null &
echo $! >pid
`

// original is a containerd configuration of somebody who has comments.
const original = `version = 2
# mine
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2" # the usual one
[plugins."io.containerd.nri.v1.nri"]
  disable = true
  socket_path = "FOLDER/nri.sock" # nobody else's
  plugin_path = "FOLDER/nri"
  plugin_config_path = "FOLDER/nri"
`

func (n *node) original() string { return strings.ReplaceAll(original, "FOLDER", n.folder) }

// node is a containerd, and our files, all in one folder.
type node struct {
	*testing.T
	folder, parts string
	// namespace is containerd's. runc's folder for it is one for all containerds.
	namespace string
}

func newNode(t *testing.T, parts string) *node {
	t.Helper()
	n := &node{t, t.TempDir(), parts, fmt.Sprintf("uninstall-%d-%x", os.Getpid(), crc32.ChecksumIEEE([]byte(t.Name())))}
	if err := os.Chmod(n.folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"bin", "rootfs/bin", "rootfs/proc", "rootfs/dev", "rootfs/sys"} {
		if err := os.MkdirAll(n.path(folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		bed.Skip(t, fmt.Sprintf("%v: run test/parts/build.sh", err))
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	for _, applet := range []string{"sleep", "true"} {
		n.write("rootfs/bin/"+applet, string(program), 0o755)
	}
	n.write("supervise", strings.ReplaceAll(supervise, "PARTS", parts), 0o755)
	n.write("config.toml", n.original(), 0o640)
	n.write("gpus.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: GPU, display: true, linux: {deviceNodes: [/dev/loop-control]}}]\n", 0o644)
	t.Cleanup(func() {
		n.removeTasks()
		_ = exec.Command(n.path("supervise"), "stop").Run()
		_ = os.Remove("/run/containerd/runc/" + n.namespace)
		if t.Failed() {
			log, _ := os.ReadFile(n.path("log"))
			t.Logf("containerd:\n%s", log[max(0, len(log)-6000):])
		}
	})
	n.must(n.path("supervise"), "start")
	n.wait("containerd", func() error {
		connection, err := crihandlers.Dial(n.path("s"))
		if err != nil {
			return err
		}
		defer connection.Close()
		_, err = crihandlers.Handlers(t.Context(), connection)
		return err
	})
	return n
}

// removeTasks ends the containers, whose shims outlive containerd.
func (n *node) removeTasks() {
	for _, id := range []string{"one", "plain", "later"} {
		_ = exec.Command(filepath.Join(n.parts, "ctr"), "--address", n.path("s"), "--namespace", n.namespace, "task", "rm", "-f", id).Run()
	}
}

func (n *node) path(name string) string { return filepath.Join(n.folder, name) }

func (n *node) bundle(id string) string {
	return filepath.Join(n.folder, "state/io.containerd.runtime.v2.task", n.namespace, id)
}

func (n *node) write(name, text string, perm os.FileMode) {
	n.Helper()
	if err := os.WriteFile(n.path(name), []byte(text), perm); err != nil {
		n.Fatal(err)
	}
}

// call runs a program and returns its status and what it said.
func (n *node) call(program string, args ...string) (status int, output string) {
	n.Helper()
	command := exec.Command(program, args...)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) {
		n.Fatal(err)
	}
	return command.ProcessState.ExitCode(), out.String()
}

func (n *node) must(program string, args ...string) string {
	n.Helper()
	status, output := n.call(program, args...)
	if status != 0 {
		n.Fatalf("%s %v: status %d: %s", filepath.Base(program), args, status, output)
	}
	return output
}

func (n *node) ctr(args ...string) string {
	n.Helper()
	return n.must(filepath.Join(n.parts, "ctr"), append([]string{"--address", n.path("s"), "--namespace", n.namespace}, args...)...)
}

// dxctl runs one of 'dxctl runtime' on the node.
func (n *node) dxctl(command string, args ...string) (status int, output string) {
	n.Helper()
	all := []string{"runtime", command}
	containerd := []string{"--config", n.path("config.toml"), "--cri-socket", n.path("s"), "--state-dir", n.path("ours")}
	switch command {
	case "install":
		all = append(all, "--to", n.path("bin"), "--shim-config", n.path("etc/config.yaml"), "--state-dir", n.path("ours"),
			"--inventory", n.path("gpus.yaml"), "--runtime", filepath.Join(n.parts, realShim))
	case "configure":
		all = append(append(all, containerd...), "--shim", n.path("bin/"+shimfile.Base))
	case "uninstall":
		all = append(append(all, containerd...), "--from", n.path("bin"), "--shim-config", n.path("etc/config.yaml"),
			"--containerd-state", n.path("state"), "--runtime-dir", n.path("run"))
	default:
		all = append(all, containerd...)
	}
	return n.call(filepath.Join(programs, "dxctl"), append(all, args...)...)
}

func (n *node) mustDxctl(command string, args ...string) string {
	n.Helper()
	status, output := n.dxctl(command, args...)
	if status != 0 {
		n.Fatalf("dxctl runtime %s %v: status %d: %s", command, args, status, output)
	}
	return output
}

func (n *node) refused(want, command string, args ...string) {
	n.Helper()
	status, output := n.dxctl(command, args...)
	if status != 1 || !strings.Contains(output, want) {
		n.Errorf("dxctl runtime %s %v: status %d: %s\nwant status 1 and %q", command, args, status, output, want)
	}
	if _, err := os.Stat(n.path("bin/" + shimfile.Base)); err != nil {
		n.Error(err)
	}
}

func (n *node) restart() []string {
	return []string{"--restart", "--restart-command", n.path("supervise") + " start", "--restart-timeout", "30s"}
}

// start starts a container that sleeps.
func (n *node) start(id, runtime string, flags ...string) {
	n.Helper()
	n.ctr(append(append([]string{"run", "-d", "--runtime", runtime}, flags...), "--rootfs", n.path("rootfs"), id, "/bin/sleep", "1000")...)
}

// startOurs starts a container that has its GPU from our shim.
func (n *node) startOurs(id string) {
	n.Helper()
	n.start(id, "io.containerd.directx.v1", "--env", "DIRECTX_VISIBLE_DEVICES=all")
	spec, err := os.ReadFile(filepath.Join(n.bundle(id), "config.json"))
	if err != nil || !strings.Contains(string(spec), "/dev/loop-control") {
		n.Fatalf("%s has no GPU: %v", id, err)
	}
}

// tasks returns the lines of the tasks that run, by ID.
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

// shimOf returns the process ID of the runc shim that runs a container.
func (n *node) shimOf(id string) int {
	n.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		n.Fatal(err)
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		args := "\x00" + string(line)
		if err == nil && strings.Contains(args, "\x00-id\x00"+id+"\x00") && strings.Contains(args, "\x00"+n.path("s")+"\x00") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				n.Fatal(err)
			}
			return pid
		}
	}
	n.Fatalf("no shim runs %s", id)
	return 0
}

// wait waits until check is content.
func (n *node) wait(what string, check func() error) {
	n.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			n.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// killShim ends a container's runc shim, as the system does when it has no
// memory, and waits until containerd has cleaned up.
func (n *node) killShim(id string) {
	n.Helper()
	task := n.tasks()[id]
	if err := syscall.Kill(n.shimOf(id), syscall.SIGKILL); err != nil {
		n.Fatal(err)
	}
	n.wait("clean-up of "+id, func() error {
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

// ours lists the files on the node that are ours.
func (n *node) ours() []string {
	n.Helper()
	var found []string
	for _, place := range []string{"bin", "etc", "ours", "run", "config.toml.directx-nri.bak"} {
		err := filepath.WalkDir(n.path(place), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && path != n.path("bin") {
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

// TestUninstallUnderContainers removes the shim while a container runs that it
// has started, in the order that the documentation has.
func TestUninstallUnderContainers(t *testing.T) {
	t.Parallel()
	for version, folder := range parts(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, folder)
			n.mustDxctl("install")
			n.mustDxctl("configure", n.restart()...)
			n.startOurs("one")
			n.start("plain", "io.containerd.runc.v2")
			before := n.tasks()
			if before["one"] == "" || before["plain"] == "" {
				t.Fatalf("running: %v", before)
			}

			n.refused("run 'dxctl runtime unconfigure --restart' first", "uninstall", n.restart()...)
			n.mustDxctl("unconfigure", n.restart()...)
			n.refused("("+n.namespace+"/one): run this again with --restart", "uninstall")
			output := n.mustDxctl("uninstall", append(n.restart(), "--purge")...)
			if want := "container " + n.namespace + "/one is handed over to " + filepath.Join(folder, realShim); !strings.Contains(output, want) || strings.Contains(output, "/plain") {
				t.Errorf("output %q, want %q", output, want)
			}
			if diff := cmp.Diff(before, n.tasks()); diff != "" {
				t.Errorf("running (-before +after):\n%s", diff)
			}
			if left := n.ours(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			text, err := os.ReadFile(n.path("config.toml"))
			if diff := cmp.Diff(n.original(), string(text)); err != nil || diff != "" {
				t.Errorf("containerd's configuration (-want +got): %v\n%s", err, diff)
			}

			n.ctr("task", "exec", "--exec-id", "x", "one", "/bin/true")
			n.killShim("one")
			n.start("later", "io.containerd.runc.v2")
		})
	}
}

// TestUninstallHolds takes a node back as the pods of a cluster do that is rid of
// us: the configuration was installed from a ConfigMap, containerd is restarted by
// what keeps it running, and the last container stays until it is told to end.
func TestUninstallHolds(t *testing.T) {
	t.Parallel()
	n := newNode(t, bed.PartsDir(t, "bin", "containerd", "ctr", realShim))
	if err := os.Mkdir(n.path("volume"), 0o700); err != nil {
		t.Fatal(err)
	}
	n.write("volume/config.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\ninventory: "+n.path("etc/inventory.yaml")+
		"\nshim: {runtime: "+filepath.Join(n.parts, realShim)+", log: "+n.path("ours/shim.log")+"}\nstateDir: "+n.path("ours")+"\n", 0o644)
	gpus, err := os.ReadFile(n.path("gpus.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	n.write("volume/inventory.yaml", string(gpus), 0o644)
	dxctl := filepath.Join(programs, "dxctl")
	n.must(dxctl, "config", "install", "--from", n.path("volume"), "--config", n.path("etc/config.yaml"), "--state-dir", n.path("ours"))
	n.must(dxctl, "runtime", "install", "--to", n.path("bin"), "--shim-config", n.path("etc/config.yaml"))
	n.mustDxctl("configure", n.restart()...)
	n.startOurs("one")
	n.mustDxctl("unconfigure", n.restart()...)

	// From here on something else keeps it running.
	keeper := exec.Command("/bin/sh", "-c", `while [ ! -e stop ]; do while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.05; done; [ -e stop ] || ./supervise start; done`)
	keeper.Dir = n.folder
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.removeTasks()
		n.write("stop", "", 0o644)
		_ = exec.Command(n.path("supervise"), "stop").Run()
		_ = keeper.Wait()
	})
	args := []string{
		"runtime", "uninstall", "--config", n.path("config.toml"), "--cri-socket", n.path("s"), "--state-dir", n.path("ours"), "--from", n.path("bin"),
		"--shim-config", n.path("etc/config.yaml"), "--containerd-state", n.path("state"), "--runtime-dir", n.path("run"), "--restart", "--restart-mode", "signal", "--purge",
	}
	before := n.tasks()
	if output := n.must(dxctl, args...); !strings.Contains(output, "/one is handed over to ") || !strings.Contains(output, "removed "+n.path("etc/config.yaml")) {
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
	lines := bufio.NewScanner(stdout)
	var told []string
	for lines.Scan() {
		if told = append(told, lines.Text()); lines.Text() == "waiting to be told to end" {
			break
		}
	}
	if diff := cmp.Diff([]string{"nothing of ours is there", "waiting to be told to end"}, told); diff != "" {
		t.Error(diff)
	}
	if err := holds.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := holds.Wait(); err != nil {
		t.Errorf("it does not end well: %v", err)
	}
}

// TestUpgradeUnderContainers has containerd clean up through a newer shim after
// a container that an older one has started.
func TestUpgradeUnderContainers(t *testing.T) {
	t.Parallel()
	n := newNode(t, parts(t)["1.7"])
	n.mustDxctl("install")
	n.startOurs("one")
	newer := n.path("newer")
	if err := bed.Build(newer, "newer", shimfile.Base); err != nil {
		t.Fatal(err)
	}
	if output := n.mustDxctl("install", "--from", filepath.Join(newer, shimfile.Base)); !strings.Contains(output, "is installed") {
		t.Error(output)
	}
	if n.tasks()["one"] == "" {
		t.Error("the container has ended")
	}
	n.killShim("one")
	n.startOurs("later")
}
