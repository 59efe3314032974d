//go:build e2e && linux

package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
	"github.com/directx-nri/directx-nri/test/bed"
)

var (
	shimRounds = rounds(120) // whole containers of each row
	callRounds = rounds(400) // calls of each program
)

// pause lets containerd finish after a container's end, with the shim's call for
// "delete", before the next is measured.
const pause = 30 * time.Millisecond

// TestShim measures what the runtime shim adds to whole containers on real parts.
func TestShim(t *testing.T) {
	inventory := gpus(1)
	gpu := inventory.GPUs[0]
	n := bed.Start(t, bed.Options{NoKubelet: true, Shim: true, Inventory: inventory})
	byHand := bed.Standalone{}
	for _, m := range gpu.Mounts(n.Dir) {
		byHand.Mounts = append(byHand.Mounts, specs.Mount{
			Source: m.Source, Destination: m.Destination, Type: "bind", Options: []string{"bind", "ro", "nosuid", "nodev"},
		})
	}
	byHand.Devices = []specs.LinuxDevice{{Path: gpu.ContainerPath(), Type: "c", Major: 61, Minor: 0}}

	client := n.Client(t)
	next := 0
	// The containers' records and file systems are made before.
	whole := func(name, runtime string, c bed.Standalone) *sample {
		next++
		c.ID, c.Runtime, c.Script = fmt.Sprintf("bench-%d", next), runtime, "exit 0"
		t.Cleanup(func() { testutil.NoError(t, client.Delete(c.ID)) })
		testutil.NoError(t, client.Create(c))
		return &sample{name: name, run: func() time.Duration {
			time.Sleep(pause)
			begin := time.Now()
			if _, err := client.Start(c.ID); err != nil {
				t.Fatal(err)
			}
			if status, err := client.Wait(c.ID); err != nil || status != 0 {
				t.Fatalf("container %s ended with status %d, %v", c.ID, status, err)
			}
			testutil.NoError(t, client.DeleteTask(c.ID))
			return time.Since(begin)
		}}
	}
	plain, again := whole("runc", bed.Runc, bed.Standalone{}), whole("runc again", bed.Runc, bed.Standalone{})
	least := whole("only exec", buildFloor(t, t.TempDir(), n.Stock("containerd-shim-runc-v2")), bed.Standalone{})
	through := whole("directx", bed.DirectX, bed.Standalone{})
	mounted := whole("runc, by hand", bed.Runc, byHand)
	requested := whole("directx, GPU", bed.DirectX, request)
	samples := []*sample{plain, again, least, through, mounted, requested}
	interleave(samples, shimRounds)
	printSamples(fmt.Sprintf("%d whole containers for each row, from the creation of the task to its deletion; a GPU is 1 device, %d mounts", shimRounds, mounts), samples)
	again.compare(plain, "the noise")
	least.compare(plain, "the floor of a wrapper written in Go")
	through.compare(plain, "")
	requested.compare(mounted, "without the mounts' own cost")
	mounted.compare(plain, "the mounts' own cost")
}

// request is a container that requests the first GPU.
var request = bed.Standalone{Annotations: map[string]string{"directx.microsoft.com/visible-devices": "0"}}

// buildFloor builds a wrapper that only becomes target.
func buildFloor(t *testing.T, dir, target string) string {
	t.Helper()
	// containerd requires a name of this form.
	floor := filepath.Join(dir, "containerd-shim-floor-v1")
	out, err := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.target="+target, "-o", floor, "./floor").CombinedOutput()
	if err != nil {
		t.Fatalf("build the wrapper that only execs: %v\n%s", err, out)
	}
	return floor
}

// TestShimCalls measures single calls of the shim at 2 and at 64 GPUs. A program
// that does nothing is the real shim.
func TestShimCalls(t *testing.T) {
	dir := t.TempDir()
	bundle, err := os.MkdirTemp("/dev/shm", "") // A tmpfs, as that of containerd's state directory in /run.
	testutil.NoError(t, err)
	t.Cleanup(func() { testutil.NoError(t, os.RemoveAll(bundle)) })
	program, err := exec.LookPath("true")
	testutil.NoError(t, err)
	nothing := bed.WriteFile(t, filepath.Join(dir, "containerd-shim-runc-v2"), string(bed.ReadFile(t, program)), 0o755)
	floor := buildFloor(t, dir, nothing)
	call := func(name, program, action, stateDir string, spec []byte) *sample {
		return &sample{name: name, run: func() time.Duration {
			testutil.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), spec, 0o644))
			cmd := exec.Command(program, "-namespace", "default", "-address", "/none", "-id", "bench", action)
			cmd.Dir, cmd.Env = bundle, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), paths.StateDirVariable+"="+stateDir)
			begin := time.Now()
			out, err := cmd.CombinedOutput()
			took := time.Since(begin)
			if err != nil || len(out) > 0 {
				t.Fatalf("%s %s: %v\n%s", program, action, err, out)
			}
			return took
		}}
	}
	plain5, plain60, gpu60 := sized(t, bed.Standalone{}, 5_000), sized(t, bed.Standalone{}, 60_000), sized(t, request, 60_000)
	for _, count := range []int{2, 64} {
		n := bed.Start(t, bed.Options{NoKubelet: true, Inventory: gpus(count)})
		for _, r := range []struct {
			name, action string
			spec         []byte
		}{
			{"start, no request, 5 kB", "start", plain5},
			{"start, no request, 60 kB", "start", plain60},
			{fmt.Sprintf("start, %d mounts, 60 kB", mounts), "start", gpu60},
			{"delete", "delete", gpu60},
		} {
			direct := call("not wrapped", nothing, r.action, "", r.spec)
			least := call("only exec", floor, r.action, "", r.spec)
			ours := call("ours", n.Product(shimfile.BaseName), r.action, n.StateDir, r.spec)
			samples := []*sample{direct, least, ours}
			interleave(samples, callRounds)
			printSamples(fmt.Sprintf("%s, %d GPUs: %d calls of each program", r.name, count, callRounds), samples)
			least.compare(direct, "the floor of a wrapper written in Go")
			ours.compare(least, "above the floor")
		}
	}
}

// sized returns the spec of a container with as many environment variables as
// make it size bytes long, as a cluster's services do.
func sized(t *testing.T, c bed.Standalone, size int) []byte {
	t.Helper()
	for i := 0; ; i++ {
		data, err := json.Marshal(c.Spec("/bench"))
		testutil.NoError(t, err)
		missing := size - len(data)
		if missing <= 0 {
			return data
		}
		for j := range missing/80 + 1 {
			c.Env = append(c.Env, fmt.Sprintf("SERVICE_%03d_%05d_PORT_8443_TCP=tcp://10.%d.%d.%d:8443", i, j, j>>8, j&0xff, i))
		}
	}
}
