//go:build e2e && linux

package bed

import (
	"os/exec"
	"path/filepath"
	"testing"

	suite "directx-nri/test/bed"
)

// Background starts a program of the prefix. Its output is printed if the test fails. It
// ends with the test.
func (w *Wine) Background(t testing.TB, name string, cmd *exec.Cmd) *suite.Process {
	t.Helper()
	p := suite.NewProcess(name, filepath.Join(t.TempDir(), "log"), func() *exec.Cmd { return cmd })
	p.Start(t)
	t.Cleanup(func() {
		if p.Running() {
			p.Kill(t)
		}
		if t.Failed() {
			t.Log(p.Tail(50))
		}
	})
	return p
}
