//go:build e2e && windows

package bed

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/diversion"
)

const divertCommand = "divert"

// Divert returns a command that makes the diversion of containerd's shim with the product, or undoes it, in a
// process that a test can kill.
func (n *Node) Divert(t testing.TB, undo bool) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	testutil.NoError(t, err)
	args := []string{divertCommand, n.Shim()}
	if !undo {
		args = append(args, n.Product())
	}
	return exec.CommandContext(t.Context(), self, args...)
}

// divert is the program of [Node.Divert].
func divert() (err error) {
	d := diversion.New(filepath.Dir(os.Args[2]))
	if len(os.Args) == 3 {
		_, err = d.Remove(context.Background())
	} else {
		_, err = d.Install(context.Background(), os.Args[3])
	}
	return err
}
