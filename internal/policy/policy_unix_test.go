//go:build unix

package policy

import (
	"errors"
	"os"
	"testing"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestReadRefusesOpenDirectory(t *testing.T) {
	t.Parallel()
	stateDir := t.TempDir()
	p := Default()
	p.Shim.RealShim = "/opt/hardened"
	testutil.NoError(t, Write(stateDir, p))
	testutil.NoError(t, os.Chmod(stateDir, 0o777))
	if _, err := Read(stateDir); !errors.Is(err, access.ErrNotPrivate) {
		t.Errorf("error %v, want %v", err, access.ErrNotPrivate)
	}
	if name, err := ReadRealShim(stateDir); name != "" || !errors.Is(err, access.ErrNotPrivate) {
		t.Errorf("%s, error %v, want %v", name, err, access.ErrNotPrivate)
	}
	p.Shim.RealShim = ""
	testutil.NoError(t, os.Chmod(stateDir, 0o700), Write(stateDir, p), os.Chmod(stateDir, 0o777))
	if name, err := ReadRealShim(stateDir); name != "" || err != nil {
		t.Errorf("without a real shim: %s, %v", name, err)
	}
	testutil.NoError(t, os.Remove(Path(stateDir)))
	if _, err := Read(stateDir); !errors.Is(err, access.ErrNotPrivate) {
		t.Errorf("a policy that others could have removed: %v", err)
	}
}
