//go:build e2e && windows

package windows

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	win "golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/diversion"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// diverted is a node on which the diversion is made and undone while containers run.
type diverted struct {
	node
	*diversion.Diversion
}

// TestDiversion changes the shim of a containerd.exe that runs containers.
func TestDiversion(t *testing.T) {
	t.Parallel()
	for name, release := range releases() {
		if skipsShim(release) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, bed.Options{Name: "divert-" + name, Release: release, Bare: true})
			d := diverted{n, diversion.New(filepath.Dir(n.Shim()))}
			for _, part := range []part{
				{"installed and uninstalled", d.testInstall},
				{"the same calls", d.testCalls},
				{"an update of containerd", d.testUpdate},
				{"a crash between two renames", d.testCrash},
				{"starts in flight", d.testInFlight},
				{"faults in any order", d.testFaults},
			} {
				t.Run(part.name, part.run)
			}
			n.mustHaveNoConfig(t)
		})
	}
}

// install makes the diversion, or makes it again.
func (d diverted) install(t *testing.T) {
	t.Helper()
	if changed, err := d.Install(t.Context(), d.Product()); err != nil || !changed {
		t.Fatalf("install: changed %t, %v", changed, err)
	}
	testutil.NoError(t, d.Check())
}

// uninstall undoes the diversion: the file of containerd is in its place, and nothing is left.
func (d diverted) uninstall(t *testing.T, want string) {
	t.Helper()
	if changed, err := d.Remove(t.Context()); err != nil || !changed {
		t.Fatalf("remove: changed %t, %v", changed, err)
	}
	if got := string(bed.ReadFile(t, d.Shim())); got != want {
		t.Errorf("%s is not that of containerd", d.Shim())
	}
	// Programs that are ending may still run from it. A later call deletes it.
	bed.Eventually(t, "the end of the directory of the real shim", func() error {
		_, err := d.Remove(t.Context())
		dir := filepath.Dir(paths.RealShim(d.Dir()))
		if left, _ := filepath.Glob(dir + `\*`); len(left) > 0 || durable.Exists(dir) {
			return errors.Join(err, fmt.Errorf("left: %v", left))
		}
		return err
	})
}

// gpu starts a pod's container with a GPU and returns its ID.
func (d diverted) gpu(t *testing.T, pod bed.Pod, name string, replica int) string {
	t.Helper()
	return d.MustStartContainer(t, pod, d.NewAllocated(name, d.Record(t, d.GPUs[0].Replica(replica))), d.GPUs[0])
}

// testInstall makes the diversion and undoes it with containers from before and after.
func (d diverted) testInstall(t *testing.T) {
	original := string(bed.ReadFile(t, d.Shim()))
	pod := d.RunPod(t, d.Name("before"))
	before := d.MustStartContainer(t, pod, d.NewContainer("before"))
	id, err := d.StartContainer(t, pod, d.NewAllocated("locked", d.Record(t, d.GPUs[0].Replica(0))))
	d.MustNotStart(t, id, err, unsupported)

	d.install(t)
	after := d.gpu(t, pod, "after", 1)
	d.MustRunImage(t, d.Name("alone"), bed.Visible("all")...)
	d.MustHave(t, d.Name("alone"), d.GPUs...)
	d.MustRun(t, bed.CRINamespace, pod.ID, before, after)

	d.uninstall(t, original)
	d.MustRun(t, bed.CRINamespace, pod.ID, before, after)
	id, err = d.StartContainer(t, pod, d.NewAllocated("locked-again", d.Record(t, d.GPUs[0].Replica(2))))
	d.MustNotStart(t, id, err, unsupported)
	d.RemoveContainer(t, before)
	d.RemoveContainer(t, after)
	d.Delete(t, d.Name("alone"))
}

// testCalls compares the calls of the real shim and of HCS with those before the diversion.
func (d diverted) testCalls(t *testing.T) {
	d.NeedsDoubles(t, "the Host Compute Service has to refuse a container")
	const refusedDir = `C:\hcs-double-refuse`
	testutil.NoError(t, os.MkdirAll(refusedDir, 0o700))
	refused := []string{"--mount", "type=bind,src=" + refusedDir + `,dst=C:\x,options=rbind:ro`}
	run := func(name string, flags ...string) (calls []string) {
		for id, flags := range map[string][]string{name: flags, name + "-refused": append(refused, flags...)} {
			if err := d.RunImage(t, d.Name(id), flags...); err == nil {
				d.Delete(t, d.Name(id))
			}
			calls = append(calls, d.calls(t, d.Name(id))...)
		}
		return slices.Sorted(slices.Values(calls))
	}
	original, want := string(bed.ReadFile(t, d.Shim())), run("bare")
	d.install(t)
	for name, flags := range map[string][]string{"with": bed.Visible("all"), "without": nil} {
		if diff := cmp.Diff(want, run(name, flags...)); diff != "" {
			t.Errorf("the calls %s a GPU, and before the diversion (-want +got):\n%s", name, diff)
		}
	}
	d.uninstall(t, original)
}

// calls returns the calls of the real shim and of HCS for a container.
func (n node) calls(t *testing.T, id string) (calls []string) {
	t.Helper()
	for _, call := range n.ShimCalls(t, id) {
		calls = append(calls, strings.ReplaceAll(fmt.Sprintf("%s < %q", call.Args, call.Stdin), id, "ID"))
	}
	for _, call := range n.Calls(t, id) {
		calls = append(calls, call.Name)
	}
	return calls
}

// testUpdate has an update of containerd that overwrites our shim.
func (d diverted) testUpdate(t *testing.T) {
	d.install(t)
	pod := d.RunPod(t, d.Name("update"))
	before := d.gpu(t, pod, "before", 10)
	updated := string(bed.ReadFile(t, d.Launcher())) + "another version"
	testutil.WriteFile(t, d.Path("updated.exe"), updated, 0o700)
	bed.Rename(t, d.Path("updated.exe"), d.Shim())
	if err := d.Check(); !errors.Is(err, diversion.ErrNotDiverted) {
		t.Errorf("check: %v", err)
	}
	id, err := d.StartContainer(t, pod, d.NewAllocated("locked", d.Record(t, d.GPUs[0].Replica(11))))
	d.MustNotStart(t, id, err, unsupported)

	d.install(t)
	if got := string(bed.ReadFile(t, paths.RealShim(d.Dir()))); got != updated {
		t.Error("the real shim is not the newer one")
	}
	d.RemoveContainer(t, d.gpu(t, pod, "after", 12))
	d.MustRun(t, bed.CRINamespace, pod.ID, before)
	d.RemoveContainer(t, before)
	d.uninstall(t, updated)
}

// testCrash has a node on which a program ended after it moved containerd's shim away.
func (d diverted) testCrash(t *testing.T) {
	original := string(bed.ReadFile(t, d.Shim()))
	for name, repair := range map[string]func(*testing.T){"install": d.install, "uninstall": func(t *testing.T) { d.uninstall(t, original) }} {
		d.install(t)
		bed.Rename(t, d.Shim(), d.Path("lost.exe"))
		if err := d.Check(); !errors.Is(err, diversion.ErrInterrupted) {
			t.Errorf("check: %v", err)
		}
		if err := d.RunImage(t, d.Name("none-"+name)); err == nil {
			t.Error("a container started without a shim")
		}
		repair(t)
		id := d.Name("repaired-" + name)
		d.MustRunImage(t, id)
		d.Delete(t, id)
		_, err := d.Remove(t.Context())
		testutil.NoError(t, err)
	}
}

// testInFlight makes and undoes the diversion while containers start.
func (d diverted) testInFlight(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var swaps sync.WaitGroup
	count := 0
	swaps.Go(func() {
		for ctx.Err() == nil {
			if _, err := d.Install(t.Context(), d.Product()); err != nil {
				t.Error(err)
			}
			if _, err := d.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			count++
		}
	})
	t.Run("starts", func(t *testing.T) {
		for i := range 20 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				id := fmt.Sprintf("%s-%d", d.Name("flight"), i)
				d.MustRunImage(t, id, bed.Visible("all")...)
				d.Delete(t, id)
			})
		}
	})
	cancel()
	swaps.Wait()
	t.Logf("the diversion was made and undone %d times", count)
}

// testFaults kills programs that make or undo the diversion at any moment, replaces our file as an update of
// containerd does, and deletes it. Each time, the next installation repairs the node.
func (d diverted) testFaults(t *testing.T) {
	newest := string(bed.ReadFile(t, d.Shim()))
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // Any number will do.
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("the seed is %d", seed)
	killed := func(undo bool) func() {
		return func() {
			program := d.Divert(t, undo)
			// As in the advertiser's container, the self-test that it runs ends, too.
			job, err := win.CreateJobObject(nil, nil)
			testutil.NoError(t, err, program.Start())
			var assignErr error
			err = program.Process.WithHandle(func(process uintptr) {
				assignErr = win.AssignProcessToJobObject(job, win.Handle(process))
			})
			testutil.NoError(t, err, assignErr)
			time.Sleep(time.Duration(random.IntN(600)) * time.Millisecond) // The moment is what varies here.
			testutil.NoError(t, win.TerminateJobObject(job, 1), win.CloseHandle(job))
			_ = program.Wait()
		}
	}
	faults := []struct {
		name   string
		happen func()
	}{
		{"an installation is killed", killed(false)},
		{"an uninstallation is killed", killed(true)},
		{"containerd is updated", func() {
			newest += "x"
			testutil.WriteFile(t, d.Path("updated.exe"), newest, 0o700)
			bed.Rename(t, d.Path("updated.exe"), d.Shim())
		}},
		{"our file is deleted", func() {
			if d.Check() == nil {
				testutil.NoError(t, os.Remove(d.Shim()))
			}
		}},
	}
	d.install(t)
	pod := d.RunPod(t, d.Name("faults"))
	running := []string{d.gpu(t, pod, "fault-0", 20)}
	for i := range 16 {
		fault := faults[random.IntN(len(faults))]
		t.Logf("%d: %s", i, fault.name)
		fault.happen()
		if _, err := d.Install(t.Context(), d.Product()); err != nil {
			t.Fatal(err)
		}
		testutil.NoError(t, d.Check())
		if got := string(bed.ReadFile(t, paths.RealShim(d.Dir()))); got != newest {
			t.Fatal("the real shim is not the newest one")
		}
		if i%4 == 3 {
			running = append(running, d.gpu(t, pod, fmt.Sprintf("fault-%d", i), 21+i/4))
		}
	}
	d.MustRun(t, bed.CRINamespace, append(running, pod.ID)...)
	for _, id := range running {
		d.RemoveContainer(t, id)
	}
	d.uninstall(t, newest)
}
