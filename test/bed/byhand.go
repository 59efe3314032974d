//go:build e2e && linux

package bed

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// DxctlCommand returns a call of dxctl that is not started yet, for the node's
// GPUs and with the stock parts on PATH.
func (n *Node) DxctlCommand(command string, args ...string) *exec.Cmd {
	cmd := exec.Command(n.Product("dxctl"), append([]string{command, "--state-dir", n.StateDir}, args...)...)
	cmd.Env = n.nerdctlEnv()
	return cmd
}

// Dxctl runs dxctl, which must succeed, and returns what it prints.
func (n *Node) Dxctl(t testing.TB, command string, args ...string) string {
	t.Helper()
	out, err := n.DxctlCommand(command, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("dxctl %s %q: %v\n%s", command, args, err, out)
	}
	return string(out)
}

// nerdctlEnv is an environment in which the stock parts are found, and nerdctl its
// own configuration.
func (n *Node) nerdctlEnv() []string {
	return append(os.Environ(), "PATH="+n.parts.dir+":"+os.Getenv("PATH"), "NERDCTL_TOML="+filepath.Join(n.Dir, nerdctlToml))
}

const nerdctlToml = "nerdctl.toml"

// Nerdctl runs nerdctl and returns all that it prints. It keeps its data in the node's
// directory and uses only what this machine's kernel has.
func (n *Node) Nerdctl(t testing.TB, args ...string) (output string, err error) {
	t.Helper()
	WriteFile(t, filepath.Join(n.Dir, nerdctlToml), fmt.Sprintf("address = %q\ndata_root = %q\nsnapshotter = %q\ncgroup_manager = \"cgroupfs\"\ncni_netconfpath = %q\n",
		n.Address(), filepath.Join(n.Dir, "nerdctl"), snapshotter, filepath.Join(n.Dir, "nerdctl-cni")), 0o644)
	cmd := exec.Command(n.Stock("nerdctl"), args...)
	cmd.Env = n.nerdctlEnv()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Address is containerd's socket.
func (n *Node) Address() string { return filepath.Join(n.Dir, "cd.sock") }
