package deviceplugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed/fakekubelet"
)

func computeGPU(id string) discovery.Device {
	d := displayGPU(id)
	d.SupportsDisplay = false
	return d
}

func TestResourcesAreRegistered(t *testing.T) {
	t.Parallel()
	k := newBed(t, displayGPU("D"), computeGPU("C"), discovery.Device{InstanceID: "N"})
	k.run()
	k.await(displayResource, "D-0 D-1")
	k.await(computeResource, "C-0 C-1")

	want := map[string]*v1beta1.RegisterRequest{}
	for resource, name := range map[string]string{displayResource: "directx-display.sock", computeResource: "directx-compute.sock"} {
		want[resource] = &v1beta1.RegisterRequest{
			Version: "v1beta1", Endpoint: name, ResourceName: resource,
			Options: &v1beta1.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true},
		}
		got, err := k.client(resource).GetDevicePluginOptions(t.Context(), &v1beta1.Empty{})
		if diff := cmp.Diff(want[resource].GetOptions(), got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("%s: options: %v %s", resource, err, diff)
		}
		if info, err := os.Lstat(filepath.Join(k.dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, error %v", name, info.Mode(), err)
		}
	}
	got := map[string]*v1beta1.RegisterRequest{}
	for _, request := range k.Requests() {
		got[request.GetResourceName()] = request
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestDeviceChanges(t *testing.T) {
	t.Parallel()
	k := newBed(t)
	source, r := k.source, k.run()
	k.await(displayResource, "")
	k.await(computeResource, "")

	source.set(nil, displayGPU("A"), displayGPU("B"))
	k.await(displayResource, "A-0 A-1 B-0 B-1")
	unhealthy := displayGPU("A")
	unhealthy.Health.Reason = "driver stopped"
	source.set(nil, unhealthy, displayGPU("B"))
	k.await(displayResource, "A-0! A-1! B-0 B-1")
	source.set(errors.New("half a file"))
	source.awaitRefreshes(t)
	if p, _ := r.servers[displayResource].current(); describe(p) != "A-- B++" {
		t.Errorf("the GPUs cannot be listed, and %q is advertised, want what was before", describe(p))
	}
	source.set(nil, displayGPU("B"), computeGPU("C"))
	k.await(computeResource, "C-0 C-1")
	k.await(displayResource, "B-0 B-1 A-0! A-1!")
	if _, got, _ := k.client(computeResource).Listed(); got != 2 {
		t.Errorf("the kubelet got %d lists of compute, want one at once and one for the change", got)
	}
}

// TestRefreshSoon: after a first list that failed and after an allocation, the next refresh comes soon.
func TestRefreshSoon(t *testing.T) {
	t.Parallel()
	k := newBed(t, displayGPU("A"))
	source, timing := k.source, fastTiming()
	timing.recheckInterval = time.Hour
	source.set(errors.New("the driver starts"))
	runWith(t, k.config, timing)
	k.await(displayResource, "")
	source.set(nil, displayGPU("A"))
	k.await(displayResource, "A-0 A-1")
	for range 2 {
		before := source.lists()
		k.allocate("A-0")
		testutil.Eventually(t, "a refresh after an allocation", func() bool { return source.lists() > before })
	}
}

// TestMissingGPUs follows a GPU that is removed while a pod holds it.
func TestMissingGPUs(t *testing.T) {
	t.Parallel()
	k := newBed(t, displayGPU("A"), displayGPU("B"))
	source, pods, r := k.source, k.pods, k.run()
	k.await(displayResource, "A-0 A-1 B-0 B-1")
	id := k.allocate("A-1")

	source.set(nil)
	k.await(displayResource, "A-0! A-1! B-0! B-1!")
	_, err := k.client(displayResource).Allocate(t.Context(), allocateRequest([]string{"A-0"}))
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), reasonMissing) {
		t.Errorf("allocated a missing GPU: %v", err)
	}

	// A new process knows the GPU from the record only.
	r.stop(t)
	r = k.run()
	k.await(displayResource, "A-0! A-1!")
	k.bind(id)
	pods.set(nil, "name-of-a")
	source.awaitRefreshes(t)
	pods.set(errors.New("no such socket"))
	source.awaitRefreshes(t)
	if records := k.config.Recorder.Refresh(); len(records) != 1 {
		t.Errorf("the pods are unknown, and the records are %v", records)
	}

	pods.set(nil, "another")
	testutil.Eventually(t, "the record's end", func() bool { return len(k.log.with("Allocation ended")) == 1 })
	r.stop(t)
	k.run()
	k.await(displayResource, "")
}

// TestRunDoesNotWaitForCalls: it ends their contexts, and ends after them.
func TestRunDoesNotWaitForCalls(t *testing.T) {
	t.Parallel()
	k := newBed(t, displayGPU("A"))
	entered := make(chan struct{})
	var handled atomic.Bool
	k.config.CheckStart = func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		time.Sleep(20 * time.Millisecond)
		handled.Store(true)
		return ctx.Err()
	}
	timing := fastTiming()
	timing.stopTimeout = 10 * time.Millisecond
	r := runWith(t, k.config, timing)
	c := k.client(displayResource)
	k.await(displayResource, "A-0 A-1")
	called := make(chan error, 1)
	go func() {
		_, err := c.PreStartContainer(context.Background(), &v1beta1.PreStartContainerRequest{DevicesIds: []string{"A-0"}})
		called <- err
	}()
	<-entered
	begin := time.Now()
	r.stop(t)
	if took := time.Since(begin); took > readyTimeout {
		t.Errorf("Run took %s to end: it waited for a call", took)
	}
	if !handled.Load() {
		t.Error("a call is in flight after Run has ended")
	}
	if err := <-called; err == nil {
		t.Error("a call that was cut off succeeded")
	}
	testutil.Eventually(t, "end of the stream", func() bool { _, _, ended := c.Listed(); return ended != nil })
	left, err := filepath.Glob(filepath.Join(k.dir, "directx-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestKubeletRestarts does not run in parallel: it counts the process's goroutines and open files.
func TestKubeletRestarts(t *testing.T) {
	dir := testutil.ShortDir(t)
	config := testConfig(t, dir, newSource(displayGPU("A"), computeGPU("C")))
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	k := startKubelet(t, dir)
	r := run(t, config)
	registered := func() {
		t.Helper()
		k.await(displayResource, "A-0 A-1")
		k.await(computeResource, "C-0 C-1")
	}
	registered()
	atFirst, filesAtFirst := runtime.NumGoroutine(), openFiles(t)
	for range 8 {
		k.Stop()
		k = startKubelet(t, dir)
		registered()
	}
	testutil.Eventually(t, "no goroutine more than before the restarts", func() bool { return runtime.NumGoroutine() <= atFirst })
	testutil.Eventually(t, "no file more than before the restarts", func() bool { return openFiles(t) <= filesAtFirst })
	r.stop(t)
	k.Stop()
	testutil.Eventually(t, "no goroutine more than before the start", func() bool { return runtime.NumGoroutine() <= goroutines })
	testutil.Eventually(t, "no file more than before the start", func() bool { return openFiles(t) <= files })
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("open files can be counted on Linux only")
	}
	return len(entries)
}

func TestRegistersAgain(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		// happen does something to a registered advertiser, and returns the kubelet that runs
		// afterward.
		happen func(t *testing.T, k *kubelet) *kubelet
	}{
		{name: "the directory is emptied while the kubelet is down", happen: func(t *testing.T, k *kubelet) *kubelet {
			k.Stop()
			testutil.NoError(t, fakekubelet.Empty(k.dir))
			testutil.Eventually(t, "new sockets", func() bool { return sockets(t, k.dir) == 2 })
			return startKubelet(t, k.dir)
		}},
		{name: "the directory is removed and created again", happen: func(t *testing.T, k *kubelet) *kubelet {
			k.Stop()
			// The advertiser may put a socket back between the two steps of it.
			testutil.Eventually(t, "removal of the directory", func() bool { return os.RemoveAll(k.dir) == nil })
			return startKubelet(t, k.dir)
		}},
		{name: "our sockets are removed", happen: func(t *testing.T, k *kubelet) *kubelet {
			for _, name := range []string{"directx-display.sock", "directx-compute.sock"} {
				testutil.NoError(t, os.Remove(filepath.Join(k.dir, name)))
			}
			return k
		}},
		{name: "the kubelet's connections are closed", happen: func(_ *testing.T, k *kubelet) *kubelet {
			for _, resource := range []string{displayResource, computeResource} {
				_ = k.Endpoint(resource).Conn.Close()
			}
			return k
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(testutil.ShortDir(t), "dp")
			k := startKubelet(t, dir)
			source := newSource(displayGPU("A"))
			run(t, testConfig(t, dir, source))
			k.await(displayResource, "A-0 A-1")
			k.await(computeResource, "")
			k = test.happen(t, k)
			source.set(nil, displayGPU("B"), displayGPU("A"), computeGPU("C"))
			k.await(displayResource, "B-0 B-1 A-0 A-1")
			k.await(computeResource, "C-0 C-1")
		})
	}
}

func sockets(t *testing.T, dir string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "directx-*.sock"))
	testutil.NoError(t, err)
	return len(found)
}

// TestFrozenKubelet: connections are accepted by the kernel and nothing is
// ever answered. That must not keep the advertiser from ending.
func TestFrozenKubelet(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	listener, err := net.Listen("unix", filepath.Join(dir, kubeletSocket))
	testutil.NoError(t, err)
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	r := run(t, testConfig(t, dir, newSource(displayGPU("A"))))
	first, second := <-accepted, <-accepted
	r.stop(t)
	_ = listener.Close()
	_, _ = first.Close(), second.Close()
	if _, more := <-accepted; more {
		t.Error("more than one attempt for each resource within the time of one")
	}
}

// TestTwoAdvertisers: the second waits for the end of the first, as when a DaemonSet is updated.
func TestTwoAdvertisers(t *testing.T) {
	t.Parallel()
	k := newBed(t, displayGPU("A"))
	dir, first := k.dir, k.run()
	k.await(displayResource, "A-0 A-1")
	before, err := localgrpc.Identify(filepath.Join(dir, "directx-display.sock"))
	testutil.NoError(t, err)
	second := testConfig(t, dir, newSource(displayGPU("B")))
	second.Log, k.log = newLog()
	run(t, second)
	testutil.Eventually(t, "an attempt", func() bool { return k.log.with("directx-display.sock: ") != nil })
	k.source.awaitRefreshes(t) // Further attempts are as frequent.
	if now, err := localgrpc.Identify(filepath.Join(dir, "directx-display.sock")); err != nil || !now.Same(before) {
		t.Errorf("the first one's socket was taken away: %v", err)
	}
	k.await(displayResource, "A-0 A-1")
	first.stop(t)
	k.await(displayResource, "B-0 B-1")
}

// TestLog logs the state of each device once. A GPU of another operating system's containers is not
// advertised.
func TestLog(t *testing.T) {
	t.Parallel()
	windows, unhealthy := displayGPU("W"), displayGPU("B")
	windows.DeviceNodes, windows.LocationPath = nil, "PCIROOT(0)#PCI(1B00)"
	unhealthy.Health.Reason = "driver stopped"
	noted := displayGPU("A")
	noted.Notes = []string{"a library is missing"}
	k := newBed(t, noted, unhealthy, windows)
	k.run()
	k.await(displayResource, "A-0 A-1 B-0! B-1!")
	k.source.set(nil, unhealthy, windows)
	testutil.Eventually(t, "the end of a GPU", func() bool { return len(k.log.with("GPU is no longer found")) == 1 })
	k.source.awaitRefreshes(t)
	lines := k.log.with("GPU found or changed")
	text := strings.Join(lines, "")
	for _, want := range []string{"cannot be allocated: driver stopped", "no device node"} {
		if len(lines) != 3 || strings.Count(text, want) != 1 {
			t.Errorf("%q is not logged once in %q", want, lines)
		}
	}
	if lines := k.log.with("a library is missing"); len(lines) != 1 || !strings.Contains(lines[0], "level=warning") {
		t.Errorf("a note is not a warning: %q", lines)
	}
}
