package paths

import (
	"net"
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
	if runtime.GOOS == "windows" {
		return // It has no k3s.
	}
	usual := k3sSocket
	t.Cleanup(func() { k3sSocket = usual })
	k3sSocket = filepath.Join(testutil.ShortDir(t), "containerd.sock")
	var s CRISocket
	if got := s.String(); got != "/run/containerd/containerd.sock" {
		t.Errorf("without k3s: %s", got)
	}
	listener, err := net.Listen("unix", k3sSocket)
	testutil.NoError(t, err)
	defer listener.Close()
	if got := s.String(); got != k3sSocket {
		t.Errorf("with k3s: %s", got)
	}
	if err := s.Set("other"); err != nil || s.String() != "other" {
		t.Errorf("set: %s, %v", s.String(), err)
	}
}
