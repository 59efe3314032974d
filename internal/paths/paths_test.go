package paths

import (
	"path/filepath"
	"runtime"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestStateDirVariable(t *testing.T) {
	t.Setenv(StateDirVariable, "")
	usual := Default()
	if !filepath.IsAbs(usual.State) {
		t.Errorf("state directory %q", usual.State)
	}
	t.Setenv(StateDirVariable, "elsewhere")
	want := usual
	want.State = "elsewhere"
	if got := Default(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A service that starts at boot uses k3s's socket as soon as k3s creates it.
func TestCRISocket(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		return // It has no k3s.
	}
	k3s := filepath.Join(t.TempDir(), "containerd.sock")
	if got := criSocket("", k3s); got != "/run/containerd/containerd.sock" {
		t.Errorf("without k3s: %s", got)
	}
	testutil.WriteFile(t, k3s, "", 0o600)
	if got := criSocket("", k3s); got != k3s {
		t.Errorf("with k3s: %s", got)
	}
	if got := criSocket("other", k3s); got != "other" {
		t.Errorf("set: %s", got)
	}
}
