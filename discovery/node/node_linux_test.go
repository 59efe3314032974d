package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/dxg"
	"github.com/directx-nri/directx-nri/discovery/nvidia"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestOpenLive(t *testing.T) {
	t.Parallel()
	o := Options{StateDir: t.TempDir(), HostRoot: t.TempDir()}
	testutil.WriteFile(t, filepath.Join(o.HostRoot, dxg.DefaultDevice), "", 0o600)
	open := func(o Options) discovery.Source {
		source, err := Open(o)
		testutil.NoError(t, err)
		return source
	}
	if _, err := open(o).Devices(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing is saved yet: %v", err)
	}
	driver := o
	driver.QueryDriver = true
	if source, ok := open(driver).(*dxg.Source); !ok {
		t.Errorf("driver: %T", source)
	}
	driver.QueryDriver, driver.UUIDs = false, nvidia.NewUUIDs("")
	if source, ok := open(driver).(*sourceWithUUIDs); !ok || source.uuids != driver.UUIDs {
		t.Errorf("to save: %T", source)
	}
	if _, err := open(driver).Devices(t.Context()); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("a file that is no driver: %v", err)
	}
	testutil.NoError(t, Discovered(o.StateDir).Write([]discovery.Device{{InstanceID: "A"}}))
	o.HostRoot = "/nonexistent" // outside of the program's container
	if devices, err := open(o).Find(t.Context(), []string{"a"}); err != nil || len(devices) != 1 {
		t.Errorf("saved: %v, %v", devices, err)
	}
}

func TestSourceWithUUIDs(t *testing.T) {
	t.Parallel()
	gpus := &listSource{}
	s := sourceWithUUIDs{gpus, nvidia.NewUUIDs(""), Discovered(t.TempDir()), true}
	for _, list := range [][]discovery.Device{{}, {{InstanceID: "A"}, {InstanceID: "B", LibraryPath: []string{"/usr/lib/wsl/lib"}}}, {{InstanceID: "B"}}, nil} {
		if list == nil { // The file is lost.
			list = gpus.list
			testutil.NoError(t, os.Remove(s.list.Path()))
		}
		gpus.list = list
		devices, err := s.Devices(t.Context())
		saved, readErr := s.list.Devices(t.Context())
		if err != nil || readErr != nil || !reflect.DeepEqual(devices, list) || !reflect.DeepEqual(saved, list) {
			t.Errorf("%v: %v, %v; recorded %v, %v", list, devices, err, saved, readErr)
		}
	}
	gpus.err = errors.New("broken")
	if _, err := s.Devices(t.Context()); !errors.Is(err, gpus.err) {
		t.Error(err)
	}
	gpus.err, gpus.list, s.list = nil, nil, Discovered(filepath.Join(t.TempDir(), "file", "state"))
	testutil.WriteFile(t, filepath.Dir(s.list.stateDir), "", 0o600)
	if _, err := s.Devices(t.Context()); !errors.Is(err, ErrNotSaved) {
		t.Error(err)
	}
}

type listSource struct {
	discovery.Static
	list []discovery.Device
	err  error
}

func (s *listSource) Devices(context.Context) ([]discovery.Device, error) { return s.list, s.err }
