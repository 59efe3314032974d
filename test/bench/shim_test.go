//go:build e2e && linux

package bench

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/internal/config"
	"directx-nri/test/bed"
)

const (
	shimRounds = 120 // whole containers of each setting
	callRounds = 250 // calls of each program
	// pause lets containerd finish what it does after a container's end, the
	// shim's call for "delete" among it, before the next is measured.
	pause = 30 * time.Millisecond
)

// sample is what one setting's runs took.
type sample struct {
	name  string
	run   func() time.Duration
	times []time.Duration
}

// takeTurns runs all samples in turn, after a few runs of each that do not count.
// Each round has an order of its own: what a run leaves behind must not always
// meet the same other one. The orders are the same each time.
func takeTurns(samples []*sample, rounds int) {
	random := rand.New(rand.NewPCG(0, 0))
	for i := range warmUp + rounds {
		for _, j := range random.Perm(len(samples)) {
			s := samples[j]
			if took := s.run(); i >= warmUp {
				s.times = append(s.times, took)
			}
		}
	}
}

// compare prints how s differs from base: the median of the rounds' differences,
// the difference of the fastest tenths, and the ratio of the medians.
func (s *sample) compare(base *sample, note string) {
	differences := make([]time.Duration, len(s.times))
	for i, took := range s.times {
		differences[i] = took - base.times[i]
	}
	fmt.Printf("  %-36s %+7.2f ms %+7.2f ms %7.3f  %s\n", s.name+" - "+base.name,
		ms(quantile(differences, 0.5)), ms(quantile(s.times, 0.1)-quantile(base.times, 0.1)),
		float64(quantile(s.times, 0.5))/float64(quantile(base.times, 0.5)), note)
}

// printComparisons prints the heading of what compare prints.
func printComparisons() {
	fmt.Printf("  %-36s %10s %10s %7s\n", "", "extra", "at p10", "ratio")
}

func printSamples(samples []*sample) {
	fmt.Printf("  %-36s %10s %10s %10s\n", "", "p10", "median", "p90")
	for _, s := range samples {
		fmt.Printf("  %-36s %7.2f ms %7.2f ms %7.2f ms\n", s.name, ms(quantile(s.times, 0.1)), ms(quantile(s.times, 0.5)), ms(quantile(s.times, 0.9)))
	}
}

// load is how many processes wanted to run, on average of the last minute.
func load(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(data))[0]
}

// TestShim measures what the runtime shim adds to a container: whole containers
// on real parts, with it and without it, and its calls by themselves.
func TestShim(t *testing.T) {
	gpu := bed.GPU{Index: 0, Libraries: mounts - 4}
	n := bed.Start(t, bed.Options{NoKubelet: true, Shim: true, Inventory: &bed.Inventory{GPUs: []bed.GPU{gpu}}})
	byHand := bed.Standalone{}
	for _, m := range gpu.Mounts(n.Dir) {
		byHand.Mounts = append(byHand.Mounts, specs.Mount{
			Source: m.Source, Destination: m.Destination, Type: "bind", Options: []string{"rbind", "ro", "nosuid", "nodev"},
		})
	}
	byHand.Devices = []specs.LinuxDevice{{Path: gpu.ContainerPath(), Type: "c", Major: 61, Minor: 0}}
	request := bed.Standalone{Env: []string{"DIRECTX_VISIBLE_DEVICES=all"}}
	measureContainers(t, n, byHand, request)
	measureCalls(t, n, request)
}

// measureContainers measures containers from the creation of the task to its
// deletion. Their records and file systems are made before.
func measureContainers(t *testing.T, n *bed.Node, byHand, request bed.Standalone) {
	client := n.Client(t, bed.DefaultNamespace)
	next := 0
	whole := func(name, runtime string, c bed.Standalone) *sample {
		next++
		c.ID, c.Runtime, c.Script = fmt.Sprintf("bench-%d", next), runtime, "exit 0"
		t.Cleanup(func() { client.Remove(t, c.ID) })
		if err := client.Create(c); err != nil {
			t.Fatal(err)
		}
		return &sample{name: name, run: func() time.Duration {
			time.Sleep(pause)
			begin := time.Now()
			if _, err := client.Start(c.ID); err != nil {
				t.Fatal(err)
			}
			if status, err := client.Wait(c.ID); err != nil || status != 0 {
				t.Fatalf("container %s ended with status %d, %v", c.ID, status, err)
			}
			if err := client.DeleteTask(c.ID); err != nil {
				t.Fatal(err)
			}
			return time.Since(begin)
		}}
	}
	plain, again := whole("runc", bed.Runc, bed.Standalone{}), whole("runc again", bed.Runc, bed.Standalone{})
	least := whole("only exec", buildFloor(t, t.TempDir(), n.RuncShim()), bed.Standalone{})
	through := whole("directx", bed.DirectX, bed.Standalone{})
	mounted := whole("runc, by hand", bed.Runc, byHand)
	requested := whole("directx, on request", bed.DirectX, request)
	samples := []*sample{plain, again, least, through, mounted, requested}
	before := load(t)
	takeTurns(samples, shimRounds)
	fmt.Printf("\nwhole containers, from the creation of the task to its deletion: %d each in turn, load %s before and %s after\n"+
		"by hand and on request: 1 device, %d mounts\n", shimRounds, before, load(t), mounts)
	printSamples(samples)
	printComparisons()
	again.compare(plain, "the noise: it is the same twice")
	least.compare(plain, "the floor of a wrapper written in Go")
	through.compare(plain, "without a request; to be at most +2.5 ms")
	requested.compare(mounted, "with one, less the mounts' own cost; to be at most +4 ms")
	mounted.compare(plain, "the mounts' own cost")
}

// buildFloor builds a wrapper that only becomes target.
func buildFloor(t *testing.T, dir, target string) string {
	t.Helper()
	// containerd wants a shim's name to look like one.
	floor := filepath.Join(dir, "containerd-shim-floor-v1")
	out, err := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.target="+target, "-o", floor, "./floor").CombinedOutput()
	if err != nil {
		t.Fatalf("build the wrapper that only execs: %v\n%s", err, out)
	}
	return floor
}

// measureCalls measures single calls of the shim, with a program that does
// nothing as the real one.
func measureCalls(t *testing.T, n *bed.Node, request bed.Standalone) {
	dir := t.TempDir()
	bundle, nothing := filepath.Join(dir, "bundle"), filepath.Join(dir, "true")
	if err := os.Mkdir(bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	// busybox goes by its name.
	if err := os.Symlink(busybox, nothing); err != nil {
		t.Fatal(err)
	}
	floor := buildFloor(t, dir, nothing)
	configFile := filepath.Join(dir, "config.yaml")
	content := fmt.Sprintf("apiVersion: %s\nkind: %s\nstateDir: %s\ninventory: %s\nshim: {runtime: %s}\n",
		config.APIVersion, config.Kind, n.StateDir, n.InventoryFile(), nothing)
	if err := os.WriteFile(configFile, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	environment := append(os.Environ(), config.Variable+"="+configFile)
	shim := n.ShimFile()
	call := func(name, program, action string, spec []byte) *sample {
		return &sample{name: name, run: func() time.Duration {
			if err := os.WriteFile(filepath.Join(bundle, "config.json"), spec, 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(program, "-namespace", "default", "-address", "/none", "-id", "bench", action)
			cmd.Dir, cmd.Env = bundle, environment
			begin := time.Now()
			out, err := cmd.CombinedOutput()
			took := time.Since(begin)
			if err != nil || len(out) > 0 {
				t.Fatalf("%s %s: %v\n%s", program, action, err, out)
			}
			return took
		}}
	}
	fmt.Printf("\nsingle calls, with a real shim that does nothing: %d each in turn, load %s before\n", callRounds, load(t))
	for _, row := range []struct {
		name, action string
		spec         []byte
	}{
		{"start, no request, 5 kB", "start", sized(t, bed.Standalone{}, 5_000)},
		{"start, no request, 60 kB", "start", sized(t, bed.Standalone{}, 60_000)},
		{fmt.Sprintf("start, %d mounts, 60 kB", mounts), "start", sized(t, request, 60_000)},
		{"delete", "delete", sized(t, request, 60_000)},
	} {
		direct := call("not wrapped", nothing, row.action, row.spec)
		least := call("only exec", floor, row.action, row.spec)
		ours := call("ours", shim, row.action, row.spec)
		samples := []*sample{direct, least, ours}
		takeTurns(samples, callRounds)
		fmt.Printf("\n%s\n", row.name)
		printSamples(samples)
		printComparisons()
		least.compare(direct, "the floor of a wrapper written in Go")
		ours.compare(direct, "what our call costs")
		ours.compare(least, "what is above the floor")
	}
	fmt.Printf("\nload %s after\n", load(t))
}

// sized returns the spec of a container with as many variables as make it size
// bytes long, as a cluster's services do.
func sized(t *testing.T, c bed.Standalone, size int) []byte {
	t.Helper()
	for i := 0; ; i++ {
		data, err := json.Marshal(c.Spec("/bench"))
		if err != nil {
			t.Fatal(err)
		}
		missing := size - len(data)
		if missing <= 0 {
			return data
		}
		for j := range missing/80 + 1 {
			c.Env = append(c.Env, fmt.Sprintf("SERVICE_%03d_%05d_PORT_8443_TCP=tcp://10.%d.%d.%d:8443", i, j, j>>8, j&0xff, i))
		}
	}
}
