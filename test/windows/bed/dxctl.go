//go:build e2e && linux

package bed

import (
	"context"
	"os"
	"testing"
)

// Shim is where our shim is on the node.
func (n *Node) Shim() string { return n.Path(directxExe) }

// ShimFile returns our shim's file, nil when there is none.
func (n *Node) ShimFile(t testing.TB) []byte { return n.read(t, directxExe) }

// Dxctl is dxctl's file name.
const Dxctl = dxctlExe

// Product returns a program of ours, as it is installed from.
func (n *Node) Product(t testing.TB, name string) []byte {
	t.Helper()
	return n.read(t, "product", name)
}

// File makes a file in the node's folder and returns its path.
func (n *Node) File(t testing.TB, name string, content []byte) string {
	t.Helper()
	n.write(t, name, string(content))
	return n.Path(name)
}

// Dxctl runs 'dxctl.exe runtime' for the node's containerd, from a folder with
// the shim that it is to install. It returns the exit status and what was
// printed.
func (n *Node) Dxctl(t testing.TB, command string, flags ...string) (status int, stdout, stderr string) {
	t.Helper()
	containerd := []string{"--config", n.Path(n.containerdToml()), "--cri-socket", n.pipe()}
	args := []string{"runtime", command}
	switch command {
	case "install":
		args = append(args, "--to", n.Path())
	case "configure":
		args = append(append(args, containerd...), "--shim", n.Shim())
	case "unconfigure":
		args = append(args, containerd...)
	default:
		args = append(append(args, containerd...), "--timeout", patience.String())
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return n.Finish(t, n.Command(ctx, n.Path("product", dxctlExe), append(args, flags...)...))
}

// read returns a file of the node, nil when there is none.
func (n *Node) read(t testing.TB, name ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(n.Linux(n.Path(name...)))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return data
}
