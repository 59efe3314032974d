package node

import (
	"errors"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/dxg"
	"github.com/directx-nri/directx-nri/discovery/nvidia"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	o := Options{StateDir: t.TempDir(), HostRoot: t.TempDir()}
	if _, err := Open(o); !errors.Is(err, ErrNoSource) {
		t.Errorf("without a GPU: %v", err)
	}
	testutil.WriteFile(t, filepath.Join(o.HostRoot, dxg.DefaultDevice), "", 0o600)
	devices := func(o Options) ([]discovery.Device, error) {
		source, err := Open(o)
		testutil.NoError(t, err)
		return source.Devices(t.Context())
	}
	if _, err := devices(o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing is saved yet: %v", err)
	}
	if _, err := devices(Options{HostRoot: o.HostRoot, UUIDs: nvidia.NewUUIDs("")}); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("a file that is no driver: %v", err)
	}
	want := []discovery.Device{{InstanceID: "A"}}
	testutil.NoError(t, Discovered(o.StateDir).Write(want))
	o.HostRoot = "/nonexistent" // outside of the program's container
	if got, err := devices(o); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("saved: %v, %v", got, err)
	}
}

func TestSourceWithUUIDs(t *testing.T) {
	t.Parallel()
	stateDir := filepath.Join(t.TempDir(), "state")
	unsaved := sourceWithUUIDs{discovery.Static{{InstanceID: "A"}}, nvidia.NewUUIDs(""), Discovered(stateDir), false}
	if _, err := unsaved.Devices(t.Context()); err != nil || durable.Exists(stateDir) {
		t.Errorf("a list that is not to be saved: %v", err)
	}
	for _, list := range []discovery.Static{{}, {{InstanceID: "A"}, {InstanceID: "B"}}} {
		s := sourceWithUUIDs{list, nvidia.NewUUIDs(""), Discovered(stateDir), true}
		devices, err := s.Devices(t.Context())
		saved, readErr := s.list.Devices(t.Context())
		if want := []discovery.Device(list); err != nil || readErr != nil || !reflect.DeepEqual(devices, want) || !reflect.DeepEqual(saved, want) {
			t.Errorf("%v: %v, %v; recorded %v, %v", list, devices, err, saved, readErr)
		}
	}
	broken := errors.New("broken")
	s := sourceWithUUIDs{discovery.Unavailable(broken), nvidia.NewUUIDs(""), Discovered(stateDir), true}
	if _, err := s.Devices(t.Context()); !errors.Is(err, broken) {
		t.Error(err)
	}
	s = sourceWithUUIDs{discovery.Static{{InstanceID: "A"}}, nvidia.NewUUIDs(""), Discovered(filepath.Join(stateDir, "discovered.json", "state")), true}
	if devices, err := s.Devices(t.Context()); err != nil || !strings.Contains(devices[0].Health.Reason, "write the list of GPUs") {
		t.Errorf("a list that is not saved: %v, %v", devices, err)
	}
	if devices, err := s.Devices(t.Context(), "A"); err != nil || !devices[0].Health.OK() {
		t.Errorf("for a container, which saves nothing: %v, %v", devices, err)
	}
}
