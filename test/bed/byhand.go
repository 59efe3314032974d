//go:build e2e && linux

package bed

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// DxctlCommand returns a call of dxctl that is not started yet, for the node's
// GPUs and with the stock parts on PATH.
func (n *Node) DxctlCommand(command string, args ...string) *exec.Cmd {
	all := append([]string{command, "--state-dir", n.StateDir}, args...)
	cmd := exec.Command(n.parts.Product("dxctl"), all...)
	cmd.Env = n.nerdctlEnv()
	return cmd
}

// nerdctlEnv is an environment in which the stock parts are found, and nerdctl its
// own configuration.
func (n *Node) nerdctlEnv() []string {
	return append(os.Environ(), "PATH="+n.parts.dir+":"+os.Getenv("PATH"), "NERDCTL_TOML="+filepath.Join(n.Dir, nerdctlToml))
}

const nerdctlToml = "nerdctl.toml"

// WriteNerdctlConfig configures nerdctl to keep its data in the node's directory
// and to use only what this machine's kernel has.
func (n *Node) WriteNerdctlConfig(t testing.TB) {
	t.Helper()
	writeFile(t, filepath.Join(n.Dir, nerdctlToml), fmt.Sprintf("address = %q\ndata_root = %q\nsnapshotter = %q\ncgroup_manager = \"cgroupfs\"\ncni_netconfpath = %q\n",
		n.Address(), filepath.Join(n.Dir, "nerdctl"), snapshotter, filepath.Join(n.Dir, "nerdctl-cni")))
}

// Nerdctl runs nerdctl and returns all that it prints.
func (n *Node) Nerdctl(args ...string) (output string, err error) {
	cmd := exec.Command(n.parts.Stock("nerdctl"), args...)
	cmd.Env = n.nerdctlEnv()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// NerdctlRunFlags are the flags of `nerdctl run` that any container needs here.
func (n *Node) NerdctlRunFlags(name string) []string {
	return []string{"--name", name, "--net", "none", "--cgroup-parent", n.cgroup}
}

// Dxctl runs dxctl and returns what it prints.
func (n *Node) Dxctl(command string, args ...string) (stdout, stderr string, err error) {
	cmd := n.DxctlCommand(command, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// CtrFile is the program of ctr.
func (n *Node) CtrFile() string { return n.parts.Stock("ctr") }

// Address is containerd's socket.
func (n *Node) Address() string { return filepath.Join(n.Dir, containerdAddress) }

// CtrRunFlags are the flags of `ctr run` that any container needs here.
func (n *Node) CtrRunFlags(id string) []string {
	return []string{"--snapshotter", snapshotter, "--cgroup", n.cgroup + "/" + id}
}
