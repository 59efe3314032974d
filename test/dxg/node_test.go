//go:build e2e && linux

package dxg

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

const replicas = 2

// TestNode runs a node whose GPUs the product discovers on the double.
func TestNode(t *testing.T) {
	d := start(t, adapters(laptop...))
	t.Setenv("DIRECTX_NRI_BIN", d.products())
	n := bed.Start(t, bed.Options{
		NoKubelet: true, Discover: true, Replicas: replicas,
		Offered: map[string]int{bed.Display: 3 * replicas}, PluginFlags: []string{"--cri-socket="}, // the default
	})

	t.Cleanup(func() { testutil.NoError(t, os.RemoveAll(k3sSocket)) })
	// k3s starts after the plugin.
	n.Plugin.Start(t)
	bed.Eventually(t, time.Minute, "the plugin is not ready", func() error {
		if err := n.CheckPlugin(); err == nil || !strings.Contains(err.Error(), "list containerd's pods") {
			return fmt.Errorf("it reports %w", err)
		}
		return nil
	})
	testutil.NoError(t, os.Symlink(n.Address(), k3sSocket))
	n.WaitPlugin(t)
	n.Join(t)

	t.Run("a pod gets its GPU", func(t *testing.T) {
		pods := []string{
			n.Apply(t, bed.GPUPod("one", 1)), n.Apply(t, bed.GPUPod("two", 2)),
			n.Apply(t, bed.Pod{Name: "none", Containers: []bed.Container{{Name: "main"}}}),
		}
		n.WaitRunning(t, pods...)
		mustHave(t, n, pods...)
	})

	t.Run("GPUs come and go under load", func(t *testing.T) {
		var pods []string
		for round := range 4 {
			left := slices.Delete(slices.Clone(laptop), round%3, round%3+1)
			d.Set(adapters(left...))
			pods = append(pods, n.Apply(t, bed.GPUPod("load", 1)))
			waitOffered(t, n, 2*replicas)
			d.Set(adapters(laptop...))
			n.SyncPods(t, pods...)
			waitOffered(t, n, 3*replicas)
		}
		n.WaitRunning(t, pods...)
		mustHave(t, n, pods...)
		n.Crash(t, pods[0], "main")
		mustHave(t, n, pods[0])
	})

	t.Run("CUDA gets UUIDs", func(t *testing.T) {
		twins := []adapter{nvidia, nvidia.with(func(a *adapter) { a.LUID++; a.Bus++ })}
		d.Set(adapters(twins...))
		waitOffered(t, n, 2*replicas)
		bed.Eventually(t, 30*time.Second, "the UUIDs are recorded", func() error {
			text, err := os.ReadFile(filepath.Join(n.StateDir, "discovered.json"))
			if err == nil && (!strings.Contains(string(text), uuid(5)) || !strings.Contains(string(text), uuid(6))) {
				err = errors.New(string(text))
			}
			return err
		})
		pods := []string{n.Apply(t, bed.GPUPod("cuda", 2)), n.Apply(t, bed.GPUPod("cuda", 1))}
		n.WaitRunning(t, pods...)
		for _, pod := range pods {
			var want []string
			for _, h := range n.Held(t) {
				for _, a := range twins {
					if h.Pod == pod && strings.HasPrefix(h.Replica, a.key()) {
						want = append(want, uuid(a.Bus))
					}
				}
			}
			slices.Sort(want)
			want = slices.Compact(want)
			got, _ := bed.Exec(t, n.CRI, n.ContainerID(t, pod, "main"), `printf %s "$CUDA_VISIBLE_DEVICES"`)
			if names := strings.Split(got, ","); len(want) == 0 || !slices.Equal(slices.Sorted(slices.Values(names)), want) {
				t.Errorf("pod %s has %q, want %q", pod, got, want)
			}
		}
		d.Set(adapters(laptop...))
		waitOffered(t, n, 3*replicas)
	})

	t.Run("LUIDs change with a reboot of the host", func(t *testing.T) {
		pod := n.Apply(t, bed.GPUPod("one", 1))
		n.WaitRunning(t, pod)
		later := slices.Clone(laptop)
		for i := range later {
			later[i].LUID += 1 << 16
		}
		d.Set(adapters(later...))
		n.Advertiser.Stop(t)
		n.Advertiser.Start(t)
		n.WaitOffered(t)
		n.Crash(t, pod, "main")
		mustHave(t, n, pod)
		if view := n.Look(t, pod, "main"); !strings.Contains(view.Hints, "_0x0001") {
			t.Errorf("the hints have the earlier LUID: %s", view.Hints)
		}
	})

	n.Advertiser.Stop(t)
	n.Plugin.Stop(t)
	d.mustBeClosed()
}

// products returns a directory of the product's programs whose advertiser runs on the
// double.
func (d *double) products() string {
	d.Helper()
	dir := d.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexec unshare --mount sh -c '%s' '%s' '%s' \"$@\"\n", onDouble, d.File, product(d, "directx-advertiser"))
	testutil.NoError(d, os.WriteFile(filepath.Join(dir, "directx-advertiser"), []byte(script), 0o755),
		os.Symlink(product(d, "directx-nri"), filepath.Join(dir, "directx-nri")))
	return dir
}

func waitOffered(t *testing.T, n *bed.Node, want int) {
	t.Helper()
	took := bed.Eventually(t, time.Minute, fmt.Sprintf("the kubelet offers %d GPUs", want), func() error {
		offered, err := n.Allocatable()
		if err == nil && offered[bed.Display] != want {
			err = fmt.Errorf("it offers %d", offered[bed.Display])
		}
		return err
	})
	t.Logf("the kubelet offered %d after %v", want, took.Round(time.Millisecond))
}

// mustHave fails the test unless the containers of pods have the device node, the driver
// packages, the libraries and the hints of the GPUs that the kubelet assigned, and
// nothing else.
func mustHave(t *testing.T, n *bed.Node, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		view := n.Look(t, pod, "main")
		assigned := ""
		for _, h := range n.Held(t) {
			if h.Pod == pod {
				assigned += h.Replica + " "
			}
		}
		var nodes []int
		want := map[string]string{}
		for _, a := range []adapter{intel, intelArc, nvidia} {
			luid := fmt.Sprintf(`%04X"`, a.LUID&0xFFFF) // The end of it.
			held := strings.Contains(assigned, a.key())
			if held != strings.Contains(view.Hints, luid) {
				t.Errorf("pod %s has %s of %s: %t, but hints %s", pod, luid, assigned, held, view.Hints)
			}
			if !held {
				continue
			}
			nodes = []int{0} // The minor number of /dev/dxg.
			maps.Copy(want, driverFiles(a))
		}
		if !slices.Equal(view.GPUs, nodes) || !maps.Equal(view.Files, want) || len(view.Writable) > 0 {
			t.Errorf("pod %s of %s has devices %v and files %v, want %v; writable: %v",
				pod, assigned, view.GPUs, slices.Sorted(maps.Keys(view.Files)), slices.Sorted(maps.Keys(want)), view.Writable)
		}
	}
}

// driverFiles returns the files below [wsl] that a container has with an adapter, with their
// content.
func driverFiles(a adapter) map[string]string {
	names := []string{"drivers/" + a.pkg + "/driver.so", "lib/libdxcore.so", "lib/libd3d12.so", "lib/libd3d12core.so"}
	if a.Vendor == nvidia.Vendor {
		names = append(names, "lib/libcuda.so.1", "lib/nvidia-smi")
	}
	files := make(map[string]string)
	for _, name := range names {
		files[wsl+"/"+name] = content(name)
	}
	return files
}

// product returns the path of one of the product's programs.
func product(t testing.TB, name string) string {
	t.Helper()
	parts, err := bed.FindParts()
	testutil.NoError(t, err)
	return parts.Product(name)
}
