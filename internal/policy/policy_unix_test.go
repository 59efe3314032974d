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
	testutil.NoError(t, Write(stateDir, Default()), os.Chmod(stateDir, 0o777))
	if _, err := Read(stateDir); !errors.Is(err, access.ErrUntrusted) {
		t.Errorf("error %v, want %v", err, access.ErrUntrusted)
	}
	testutil.NoError(t, os.Remove(Path(stateDir)))
	if _, err := Read(stateDir); !errors.Is(err, access.ErrUntrusted) {
		t.Errorf("a policy that others could have removed: %v", err)
	}
}
