//go:build e2e && linux

package bed

import (
	"context"
	"testing"
)

// Runhcs is runhcs alone, by its own name.
const Runhcs = "io.containerd.runhcs.v1"

// Ask runs a command of dxctl.exe about the node's GPUs. It returns the exit
// status and what was printed.
func (n *Node) Ask(t testing.TB, command string, flags ...string) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return n.Finish(t, n.Command(ctx, n.Path("product", dxctlExe), append([]string{command}, flags...)...))
}

// Pipe is containerd's address.
func (n *Node) Pipe() string { return n.pipe() }
