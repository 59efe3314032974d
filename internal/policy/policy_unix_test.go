//go:build unix

package policy

import (
	"errors"
	"os"
	"testing"

	"github.com/directx-nri/directx-nri/internal/durable"
)

func TestReadRefusesOpenDirectory(t *testing.T) {
	t.Parallel()
	stateDir := t.TempDir()
	p := Default()
	p.Shim = Shim{RealShim: "/opt/hardened", Log: "/etc/passwd"}
	if err := Write(stateDir, p); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(stateDir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(stateDir); !errors.Is(err, durable.ErrNotPrivate) {
		t.Errorf("error %v, want %v", err, durable.ErrNotPrivate)
	}
	// Who can write there can remove the runtime's file, too.
	for range 2 {
		if shim, err := ReadShim(stateDir); shim.RealShim != "/opt/hardened" || shim.Log != "" || !errors.Is(err, durable.ErrNotPrivate) {
			t.Errorf("%+v, error %v, want %v", shim, err, durable.ErrNotPrivate)
		}
		if err := durable.Remove(RealShimPath(stateDir)); err != nil {
			t.Fatal(err)
		}
	}
	p.Shim.RealShim = ""
	if err := errors.Join(os.Chmod(stateDir, 0o700), Write(stateDir, p), os.Chmod(stateDir, 0o777)); err != nil {
		t.Fatal(err)
	}
	if shim, err := ReadShim(stateDir); err != nil || shim.Log != "" {
		t.Errorf("without a runtime: %+v, %v", shim, err)
	}
}
