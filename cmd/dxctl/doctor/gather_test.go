//go:build unix

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"directx-nri/discovery"
	"directx-nri/internal/config"
)

// emptyNode is a node on which there is nothing.
func emptyNode(folder string) Node {
	path := func(name string) string { return filepath.Join(folder, name) }
	return Node{
		OS: "linux", ShimConfig: path("config.yaml"), StateDir: path("state"), RuntimeDir: path("run"), Shim: path("containerd-shim-directx-v1"),
		ContainerdConfig: path("config.toml"), ContainerdState: path("c"), CRISocket: path("s"), NRISocket: path("n"), KubeletDir: path("k"), PodResources: path("p"),
		Devices: func(context.Context, string) ([]discovery.Device, error) { return nil, errors.New("none") },
		Changed: func(string, string) Leftovers { return Leftovers{} },
		Timeout: 300 * time.Millisecond,
	}
}

// TestNobodyAnswers has everybody listen and nobody answer: each question ends by
// its own limit.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "dr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	for _, name := range []string{"run", "k"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"s", "n", "p", "run/nri.sock", "k/kubelet.sock", "k/directx-display.sock", "k/directx-compute.sock"} {
		listener, err := net.Listen("unix", filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
	}
	shim := filepath.Join(folder, "containerd-shim-directx-v1")
	if err := os.WriteFile(shim, []byte("#!/bin/sh\nexec sleep 600\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	f := Gather(t.Context(), emptyNode(folder))
	for what, err := range map[string]error{
		"containerd": f.Containerd.Err, "the advertiser": f.Kubelet.Advertiser["directx.microsoft.com/display"], "PodResources": f.Kubelet.PodResourcesErr, "the shim": f.Shims[0].Err,
	} {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if f.NRI.PluginErr == nil || !f.NRI.Started || f.NRI.SocketErr != nil || f.Kubelet.SocketErr != nil {
		t.Errorf("%+v %+v", f.NRI, f.Kubelet)
	}
}

func TestNothingIsThere(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f := Gather(t.Context(), emptyNode(folder))
	for what, err := range map[string]error{
		"containerd": f.Containerd.Err, "the kubelet": f.Kubelet.FolderErr, "the shim": f.Shims[0].Err, "NRI": f.NRI.SocketErr,
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if f.Config.Exists || f.Config.Err != nil || f.Containerd.FileErr != nil || f.Records.Err != nil || len(f.Folders) > 0 {
		t.Errorf("%+v", f)
	}
}

func TestMissingFiles(t *testing.T) {
	t.Parallel()
	there := filepath.Join(t.TempDir(), "lib.so")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	g := missingOf(discovery.Device{
		VendorID:        discovery.VendorNVIDIA,
		DriverStorePath: `C:\Windows\System32\DriverStore\FileRepository\nv`,
		System32:        []discovery.RuntimeFile{{Source: `sub\a.dll`, Destination: "a.dll"}, {Source: "unwanted.dll", Destination: "unwanted.dll"}},
		Libraries:       []discovery.Library{{Source: there}, {Source: there + ".1"}},
		DeviceNodes:     []discovery.DeviceNode{{Path: "/dev/null"}, {Path: "/dev/no-such-node"}},
	}, []config.RuntimeFiles{{Vendor: uint16(discovery.VendorNVIDIA), Remove: []string{"UN*.dll"}}, {Vendor: 1, Remove: []string{"*"}}})
	want := []string{`C:\Windows\System32\DriverStore\FileRepository\nv\sub\a.dll`, there + ".1", "/dev/no-such-node"}
	if g.FilesErr != nil || len(g.Missing) != len(want) {
		t.Fatalf("%+v", g)
	}
	for i := range want {
		if g.Missing[i] != want[i] {
			t.Errorf("%q, want %q", g.Missing[i], want[i])
		}
	}
}

// A program that nobody may execute is broken for root too, and root is not told
// to be root.
func TestShimIsNotExecutable(t *testing.T) {
	t.Parallel()
	n := emptyNode(t.TempDir())
	if err := os.WriteFile(n.Shim, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := Gather(t.Context(), n)
	if err := f.Shims[0].Err; err == nil || errors.Is(err, fs.ErrPermission) != (os.Geteuid() != 0) {
		t.Errorf("as user %d: %v", os.Geteuid(), err)
	}
}

// TestAnAnswerThatNeverComes has the disk and the GPUs' drivers hang, in calls
// that nothing ends.
func TestAnAnswerThatNeverComes(t *testing.T) {
	t.Parallel()
	n := emptyNode(t.TempDir())
	n.Timeout = 100 * time.Millisecond
	if err := unix.Mkfifo(n.ShimConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	hangs := make(chan struct{})
	t.Cleanup(func() {
		close(hangs)
		// Whoever opened it for reading gets its end.
		if f, err := os.OpenFile(n.ShimConfig, os.O_WRONLY, 0); err == nil {
			f.Close()
		}
	})
	n.Inventory = "gpus.yaml"
	n.Devices = func(context.Context, string) ([]discovery.Device, error) { <-hangs; return nil, nil }
	f := Gather(t.Context(), n)
	for what, err := range map[string]error{"config.yaml": f.Config.Err, "the GPUs": f.GPUs.Err} {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What was configured stands where 'dxctl runtime configure' keeps it, also when
// config.yaml has the records elsewhere.
func TestChangesAreKeptElsewhere(t *testing.T) {
	t.Parallel()
	n := emptyNode(t.TempDir())
	usual := filepath.Join(t.TempDir(), "usual")
	n.ConfigureDir = usual
	n.Changed = func(_, state string) Leftovers {
		if state == usual {
			return Leftovers{Journal: filepath.Join(state, "journal"), Applied: true}
		}
		return Leftovers{Backup: "config.toml.bak"}
	}
	if l := n.changed(); l.Backup != "" || l.Journal == "" || !l.Applied {
		t.Errorf("%+v", l)
	}
	n.StateDir, n.ConfigureDir = n.ConfigureDir, n.StateDir
	if l := n.changed(); l.Backup != "" || l.Journal == "" || !l.Applied {
		t.Errorf("the other way round: %+v", l)
	}
	n.Failed = func(state string) FailedConfigure {
		if state == usual {
			return FailedConfigure{Record: filepath.Join(state, "failed")}
		}
		return FailedConfigure{}
	}
	if got := n.failed().Record; got != filepath.Join(usual, "failed") {
		t.Errorf("the restart that failed: %q", got)
	}
	n.StateDir, n.ConfigureDir = n.ConfigureDir, n.StateDir
	if got := n.failed().Record; got != filepath.Join(usual, "failed") {
		t.Errorf("the restart that failed, the other way round: %q", got)
	}
}
