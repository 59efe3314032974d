//go:build e2e && linux

package bed

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// Docker starts dockerd, with a containerd of its own, until the test ends, and returns the
// commands of its client.
func (n *Node) Docker(t testing.TB) func(args ...string) *exec.Cmd {
	t.Helper()
	testutil.NoError(t, n.parts.CheckStock("dockerd", "docker"), n.parts.CheckStock("docker", "docker"))
	dir := filepath.Join(n.Dir, "docker")
	testutil.NoError(t, os.Mkdir(dir, 0o755))
	config := WriteFile(t, filepath.Join(dir, "daemon.json"), "{}", 0o644) // in place of this machine's
	socket := "unix://" + filepath.Join(dir, "docker.sock")
	daemon := NewProcess("dockerd", filepath.Join(dir, "log"), func() *exec.Cmd {
		cmd := exec.Command(n.Stock("dockerd"), "--host", socket, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
			"--pidfile", filepath.Join(dir, "pid"), "--config-file", config, "--storage-driver", "vfs", "--cgroup-parent", n.cgroup,
			"--bridge", "none", "--iptables=false", "--ip6tables=false", "--userland-proxy=false")
		cmd.Env = append(os.Environ(), "PATH="+n.parts.dir+":"+os.Getenv("PATH"))
		return cmd
	})
	daemon.Start(t)
	t.Cleanup(func() {
		if daemon.Running() {
			daemon.Terminate(t)
		}
	})
	docker := func(args ...string) *exec.Cmd {
		return exec.Command(n.Stock("docker"), slices.Concat([]string{"--host", socket}, args)...)
	}
	daemon.wait(t, "dockerd serves", func() error {
		_, err := docker("version").Output()
		return err
	})
	return docker
}
