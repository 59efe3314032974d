package advertiser

import (
	"context"
	"errors"
	"fmt"
	"io"
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

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/localgrpc"
	"directx-nri/internal/metrics"
	"directx-nri/internal/policy"
	"directx-nri/internal/testutil"
)

func computeGPU(id string) discovery.Device {
	return discovery.Device{InstanceID: id, SupportsCompute: true}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		change  func(*Config)
		wantErr string
	}{
		{name: "nothing", change: func(*Config) {}},
		{name: "no replica", change: func(c *Config) { c.Resources = twoKinds(0) }, wantErr: "must be 1 to 1024"},
		{name: "fewer than none", change: func(c *Config) { c.Resources = twoKinds(-1) }, wantErr: "must be 1 to 1024"},
		{name: "too many", change: func(c *Config) { c.Resources = twoKinds(1025) }, wantErr: "must be 1 to 1024"},
		{name: "as many as possible", change: func(c *Config) { c.Resources = twoKinds(1024) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := testConfig(t, t.TempDir(), newSource())
			test.change(&config)
			_, err := New(config)
			if test.wantErr == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("error %v, want one with %q", err, test.wantErr)
			}
		})
	}
}

func TestRegistration(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	run(t, testConfig(t, dir, newSource(displayGPU("D"), computeGPU("C"), discovery.Device{InstanceID: "N"})))
	k.await(ResourceDisplay, "D::0 D::1")
	k.await(ResourceCompute, "C::0 C::1")

	want := map[string]*v1beta1.RegisterRequest{}
	for resource, name := range map[string]string{ResourceDisplay: "directx-display.sock", ResourceCompute: "directx-compute.sock"} {
		want[resource] = &v1beta1.RegisterRequest{Version: "v1beta1", Endpoint: name, ResourceName: resource, Options: &v1beta1.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}}
		got, err := k.client(resource).GetDevicePluginOptions(t.Context(), &v1beta1.Empty{})
		if diff := cmp.Diff(want[resource].GetOptions(), got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("%s: options: %v %s", resource, err, diff)
		}
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, error %v", name, info.Mode(), err)
		}
	}
	got := map[string]*v1beta1.RegisterRequest{}
	for _, request := range k.registrations() {
		got[request.GetResourceName()] = request
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestDeviceChanges(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	source := newSource()
	r := run(t, testConfig(t, dir, source))
	k.await(ResourceDisplay, "")
	k.await(ResourceCompute, "")

	source.set(nil, displayGPU("A"), displayGPU("B"))
	k.await(ResourceDisplay, "A::0 A::1 B::0 B::1")
	unhealthy := displayGPU("A")
	unhealthy.Health.Reason = "driver stopped"
	source.set(nil, unhealthy, displayGPU("B"))
	k.await(ResourceDisplay, "A::0! A::1! B::0 B::1")
	source.set(errors.New("half a file"))
	// After a second failed call, the first failure was handled.
	eventually(t, "failed looks at the GPUs", func() bool { return source.failures() >= 2 })
	if p, _ := r.pools[ResourceDisplay].current(); offered(p) != "A! B" {
		t.Errorf("the GPUs cannot be listed, and %q is offered, want what was before", offered(p))
	}
	source.set(nil, displayGPU("B"), computeGPU("C"))
	k.await(ResourceCompute, "C::0 C::1")
	k.await(ResourceDisplay, "B::0 B::1")
	if got := k.client(ResourceCompute).count(); got != 2 {
		t.Errorf("the kubelet got %d lists of compute, want one at once and one for the change", got)
	}
}

// TestMissingGPUs follows a GPU that leaves while a pod holds it.
func TestMissingGPUs(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	source := newSource(displayGPU("A"), displayGPU("B"))
	config := testConfig(t, dir, source)
	recorder, pods := &memoryRecorder{}, &memoryPods{}
	config.Recorder, config.Pods = recorder, pods.tracker()
	r := run(t, config)
	k.await(ResourceDisplay, "A::0 A::1 B::0 B::1")
	if _, err := k.client(ResourceDisplay).Allocate(t.Context(), allocateRequest([]string{"A::1"})); err != nil {
		t.Fatal(err)
	}

	source.set(nil)
	k.await(ResourceDisplay, "A::0! A::1!")
	_, err := k.client(ResourceDisplay).Allocate(t.Context(), allocateRequest([]string{"A::0"}))
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), faultMissing) {
		t.Errorf("allocated a missing GPU: %v", err)
	}

	// Another process finds the GPU in the record only.
	r.stop(t)
	run(t, config)
	k.await(ResourceDisplay, "A::0! A::1!")
	recorder.bind()
	pods.set(nil, "name-of-a")
	recorder.awaitLooks(t)
	pods.set(errors.New("no such socket"))
	recorder.awaitLooks(t)
	k.await(ResourceDisplay, "A::0! A::1!")

	pods.set(nil, "another")
	k.await(ResourceDisplay, "")
	source.set(nil, displayGPU("A"))
	k.await(ResourceDisplay, "A::0 A::1")
}

// TestMissingGPUsWhenTheKubeletRestarts: for a while the new kubelet lists no pod, and
// still needs the replicas in its checkpoint.
func TestMissingGPUsWhenTheKubeletRestarts(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	source := newSource(displayGPU("A"))
	config := testConfig(t, dir, source)
	recorder, pods := &memoryRecorder{}, &memoryPods{}
	config.Recorder, config.Pods = recorder, pods.tracker()
	run(t, config)
	k.await(ResourceDisplay, "A::0 A::1")
	if _, err := k.client(ResourceDisplay).Allocate(t.Context(), allocateRequest([]string{"A::1"})); err != nil {
		t.Fatal(err)
	}
	recorder.bind()
	pods.set(nil, "name-of-a")
	recorder.awaitLooks(t)
	source.set(nil)
	k.await(ResourceDisplay, "A::0! A::1!")

	// The new kubelet lists pods before it replaces the old one's socket.
	pods.set(errors.New("connection refused"))
	k.stop()
	recorder.awaitLooks(t)
	pods.set(nil)
	recorder.awaitLooks(t)
	k = startKubelet(t, dir)
	k.await(ResourceDisplay, "A::0! A::1!")
	k.await(ResourceCompute, "")
	recorder.awaitLooks(t)
	k.await(ResourceDisplay, "A::0! A::1!")

	pods.set(nil, "name-of-a")
	recorder.awaitLooks(t)
	pods.set(nil)
	k.await(ResourceDisplay, "")
}

// TestListTooLarge: a list that is too large for the kubelet does not replace the last.
func TestListTooLarge(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	source := newSource(displayGPU("A"))
	config := testConfig(t, dir, source)
	config.Resources = twoKinds(policy.MaxReplicas)
	recorder, log := &memoryRecorder{}, &lineLog{}
	config.Recorder, config.Log = recorder, log.logger()
	r := run(t, config)
	listOf := func(instanceID string) string {
		var ids []string
		for n := range policy.MaxReplicas {
			ids = append(ids, replicaID(instanceID, n))
		}
		return strings.Join(ids, " ")
	}
	ofA := listOf("A")
	k.await(ResourceDisplay, ofA)

	source.set(nil, append(bigNode(64), computeGPU("C"))...)
	k.await(ResourceCompute, listOf("C"))
	recorder.awaitLooks(t)
	k.await(ResourceDisplay, ofA)
	const complaint = "Cannot offer the GPUs"
	if lines := log.with(complaint); len(lines) != 1 || !strings.Contains(lines[0], "lower replicas in the configuration to ") {
		t.Errorf("logged %q, want one line with the remedy", lines)
	}
	if err := r.Registered(); err == nil || !strings.Contains(err.Error(), "lower replicas") {
		t.Errorf("Registered: %v", err)
	}

	source.set(nil, displayGPU("A"), computeGPU("C"))
	eventually(t, "end of the error", func() bool { return len(log.with("offered again")) == 1 })
	k.await(ResourceDisplay, ofA)
}

func TestStart(t *testing.T) {
	t.Parallel()
	none := discovery.Device{InstanceID: "N"}
	for _, test := range []struct {
		name    string
		source  *memorySource
		fail    bool
		wantErr string
	}{
		{name: "no GPU", source: newSource(none)},
		{name: "no answer", source: &memorySource{err: errors.New("no file"), broken: make(chan error)}},
		{name: "no GPU, failOnInitError", source: newSource(none), fail: true, wantErr: "no GPU"},
		{name: "no answer, failOnInitError", source: &memorySource{err: errors.New("no file")}, fail: true, wantErr: "no file"},
		{name: "GPU, failOnInitError", source: newSource(computeGPU("C")), fail: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := testutil.ShortDir(t)
			k := startKubelet(t, dir)
			config := testConfig(t, dir, test.source)
			config.FailOnInitError = test.fail
			if test.wantErr != "" {
				a, err := New(config)
				if err != nil {
					t.Fatal(err)
				}
				if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("error %v, want one with %q", err, test.wantErr)
				}
				return
			}
			run(t, config)
			k.client(ResourceDisplay)
			test.source.set(nil, displayGPU("A"))
			k.await(ResourceDisplay, "A::0 A::1")
		})
	}
}

// TestRecheckDevices: a source whose first answer was an error may report no change later.
func TestRecheckDevices(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	source := newSource()
	source.err = errors.New("no file")
	run(t, testConfig(t, dir, source))
	k.await(ResourceDisplay, "")
	source.mu.Lock()
	source.devices, source.err = []discovery.Device{displayGPU("A")}, nil
	source.mu.Unlock()
	k.await(ResourceDisplay, "A::0 A::1")
}

func TestBackgroundFailureEndsRun(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		want string
	}{
		{err: errors.New("inotify is gone"), want: "inotify is gone"},
		{err: nil, want: "ended unexpectedly"},
	} {
		t.Run(test.want, func(t *testing.T) {
			t.Parallel()
			dir := testutil.ShortDir(t)
			k := startKubelet(t, dir)
			source := newSource(displayGPU("A"))
			r := run(t, testConfig(t, dir, source))
			k.await(ResourceDisplay, "A::0 A::1")
			source.broken <- test.err
			if err := r.wait(t); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Run returned %v, want an error with %q", err, test.want)
			}
			r.ended <- nil
			for resource := range r.pools {
				if _, err := os.Lstat(filepath.Join(dir, SocketName(resource))); !os.IsNotExist(err) {
					t.Errorf("%s still exists: %v", SocketName(resource), err)
				}
			}
		})
	}
}

func TestEnd(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	config := testConfig(t, dir, newSource(displayGPU("A")))
	entered := make(chan struct{})
	config.Ready = func(ctx context.Context, _ Start) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}
	r := run(t, config, func(a *Advertiser) { a.timing.stop = 10 * time.Millisecond })
	c := k.client(ResourceDisplay)
	k.await(ResourceDisplay, "A::0 A::1")
	called := make(chan error, 1)
	go func() {
		_, err := c.PreStartContainer(context.Background(), &v1beta1.PreStartContainerRequest{DevicesIds: []string{"A::0"}})
		called <- err
	}()
	<-entered
	begin := time.Now()
	r.stop(t)
	if took := time.Since(begin); took > readyTimeout {
		t.Errorf("Run took %s to end: it waited for a call", took)
	}
	if err := <-called; err == nil {
		t.Error("a call that was cut off succeeded")
	}
	eventually(t, "end of the stream", func() bool { return c.end() != nil })
	left, err := filepath.Glob(filepath.Join(dir, "directx-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestEndClosesStreamsCleanly(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	r := run(t, testConfig(t, dir, newSource(displayGPU("A"))))
	k.await(ResourceDisplay, "A::0 A::1")
	r.stop(t)
	c := k.client(ResourceDisplay)
	eventually(t, "end of the stream", func() bool { return c.end() != nil })
	if !errors.Is(c.end(), io.EOF) {
		t.Errorf("the stream ended with %v, want its regular end", c.end())
	}
}

// TestKubeletRestarts does not run in parallel: it counts the process's
// goroutines and open files.
func TestKubeletRestarts(t *testing.T) {
	dir := testutil.ShortDir(t)
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	k := startKubelet(t, dir)
	r := run(t, testConfig(t, dir, newSource(displayGPU("A"), computeGPU("C"))))
	registered := func() {
		t.Helper()
		k.await(ResourceDisplay, "A::0 A::1")
		k.await(ResourceCompute, "C::0 C::1")
	}
	registered()
	atFirst, filesAtFirst := runtime.NumGoroutine(), openFiles(t)
	for range 8 {
		k.stop()
		k = startKubelet(t, dir)
		registered()
	}
	eventually(t, "no goroutine more than before the restarts", func() bool { return runtime.NumGoroutine() <= atFirst })
	eventually(t, "no file more than before the restarts", func() bool { return openFiles(t) <= filesAtFirst })
	r.stop(t)
	k.stop()
	eventually(t, "no goroutine more than before the start", func() bool { return runtime.NumGoroutine() <= goroutines })
	eventually(t, "no file more than before the start", func() bool { return openFiles(t) <= files })
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
		// happen is what happens to a registered advertiser; it returns the
		// kubelet from then on.
		happen func(t *testing.T, k *kubelet) *kubelet
	}{
		{name: "the kubelet is down for a while", happen: func(t *testing.T, k *kubelet) *kubelet {
			k.stop()
			time.Sleep(30 * time.Millisecond) // some attempts fail
			return startKubelet(t, k.dir)
		}},
		{name: "the directory is emptied while the kubelet is down", happen: func(t *testing.T, k *kubelet) *kubelet {
			k.stop()
			k.emptyDirectory()
			eventually(t, "new sockets", func() bool { return sockets(t, k.dir) == 2 })
			return startKubelet(t, k.dir)
		}},
		{name: "the directory is removed and created again", happen: func(t *testing.T, k *kubelet) *kubelet {
			k.stop()
			// The advertiser may put a socket back between the two steps of it.
			eventually(t, "removal of the directory", func() bool { return os.RemoveAll(k.dir) == nil })
			return startKubelet(t, k.dir)
		}},
		{name: "our sockets are removed", happen: func(t *testing.T, k *kubelet) *kubelet {
			for _, name := range []string{"directx-display.sock", "directx-compute.sock"} {
				if err := os.Remove(filepath.Join(k.dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			return k
		}},
		{name: "the kubelet's connections are closed", happen: func(_ *testing.T, k *kubelet) *kubelet {
			k.mu.Lock()
			defer k.mu.Unlock()
			for _, c := range k.clients {
				_ = c.conn.Close()
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
			k.await(ResourceDisplay, "A::0 A::1")
			k.await(ResourceCompute, "")
			k = test.happen(t, k)
			source.set(nil, displayGPU("B"), displayGPU("A"), computeGPU("C"))
			k.await(ResourceDisplay, "B::0 B::1 A::0 A::1")
			k.await(ResourceCompute, "C::0 C::1")
		})
	}
}

func sockets(t *testing.T, dir string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "directx-*.sock"))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

func TestWaitsForKubeletDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(testutil.ShortDir(t), "kubelet", "dp")
	run(t, testConfig(t, dir, newSource(displayGPU("A"))))
	k := startKubelet(t, dir)
	k.await(ResourceDisplay, "A::0 A::1")
}

// TestFrozenKubelet: connections are accepted by the kernel and nothing is
// ever answered. That must not keep the advertiser from ending.
func TestFrozenKubelet(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	listener, err := net.Listen("unix", filepath.Join(dir, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
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
	r := run(t, testConfig(t, dir, newSource(displayGPU("A"))), func(a *Advertiser) { a.timing.call = time.Hour })
	first, second := <-accepted, <-accepted
	r.stop(t)
	_ = listener.Close()
	_, _ = first.Close(), second.Close()
	if _, more := <-accepted; more {
		t.Error("more than one attempt for each resource within the time of one")
	}
}

// TestTwoAdvertisers: the second waits for the end of the first, as when a
// DaemonSet is updated.
func TestTwoAdvertisers(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	first := run(t, testConfig(t, dir, newSource(displayGPU("A"))))
	k.await(ResourceDisplay, "A::0 A::1")
	before, err := localgrpc.Identify(filepath.Join(dir, "directx-display.sock"))
	if err != nil {
		t.Fatal(err)
	}
	second := testConfig(t, dir, newSource(displayGPU("B")))
	run(t, second)
	time.Sleep(50 * time.Millisecond) // for some attempts
	if now, err := localgrpc.Identify(filepath.Join(dir, "directx-display.sock")); err != nil || !now.Same(before) {
		t.Errorf("the first one's socket was taken away: %v", err)
	}
	k.await(ResourceDisplay, "A::0 A::1")
	first.stop(t)
	k.await(ResourceDisplay, "B::0 B::1")
}

func allocateRequest(containers ...[]string) *v1beta1.AllocateRequest {
	request := &v1beta1.AllocateRequest{}
	for _, ids := range containers {
		request.ContainerRequests = append(request.ContainerRequests, &v1beta1.ContainerAllocateRequest{DevicesIds: ids})
	}
	return request
}

// TestAllocationToPod runs the calls of one pod's admission and start over the
// socket, with records in files.
func TestAllocationToPod(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	records := filepath.Join(dir, "records")
	recorder, err := allocation.OpenRecorder(t.Context(), records, testutil.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := recorder.Close(); err != nil {
			t.Error(err)
		}
	})
	k := startKubelet(t, filepath.Join(dir, "dp"))
	config := testConfig(t, k.dir, newSource(displayGPU("A"), displayGPU("B")))
	config.Recorder = recorder
	var down atomic.Bool
	config.Ready = func(_ context.Context, start Start) error {
		if diff := cmp.Diff(Start{Resource: ResourceDisplay, ReplicaIDs: []string{"A::1"}}, start); diff != "" {
			t.Error(diff)
		}
		if down.Load() {
			return errors.New("the NRI plugin is not running")
		}
		return nil
	}
	run(t, config)
	c := k.client(ResourceDisplay)

	preferred, err := c.GetPreferredAllocation(t.Context(), &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: []string{"B::1", "A::1", "A::0", "B::0"}, AllocationSize: 2},
		{AvailableDeviceIDs: []string{"B::1", "A::1"}, MustIncludeDeviceIDs: []string{"B::1"}, AllocationSize: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"A::0", "B::0"}, preferred.GetContainerResponses()[0].GetDeviceIDs()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"B::1"}, preferred.GetContainerResponses()[1].GetDeviceIDs()); diff != "" {
		t.Error(diff)
	}

	answer, err := c.Allocate(t.Context(), allocateRequest([]string{"A::0", "B::0"}, []string{"A::1"}))
	if err != nil {
		t.Fatal(err)
	}
	store := allocation.OpenStore(records)
	for i, want := range [][]allocation.Replica{{{ID: "A::0", InstanceID: "A"}, {ID: "B::0", InstanceID: "B"}}, {{ID: "A::1", InstanceID: "A"}}} {
		got := answer.GetContainerResponses()[i]
		token, err := allocation.ParseToken(got.GetEnvs()["DIRECTX_ALLOCATION_DISPLAY"])
		if err != nil {
			t.Fatal(err)
		}
		only := &v1beta1.ContainerAllocateResponse{
			Envs:        map[string]string{"DIRECTX_ALLOCATION_DISPLAY": string(token)},
			Annotations: map[string]string{"directx.microsoft.com/allocation.display": string(token)},
			Mounts:      []*v1beta1.Mount{{ContainerPath: "/proc/directx-nri-did-not-adjust-this-container", HostPath: "/dev/null", ReadOnly: true}},
		}
		if diff := cmp.Diff(only, got, protocmp.Transform()); diff != "" {
			t.Errorf("the answer is not the token and the interlock: %s", diff)
		}
		record, err := store.Get(token)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, record.Replicas); diff != "" || record.Resource != ResourceDisplay {
			t.Errorf("recorded for %s: %s", record.Resource, diff)
		}
	}

	if _, err := c.PreStartContainer(t.Context(), &v1beta1.PreStartContainerRequest{DevicesIds: []string{"A::1"}}); err != nil {
		t.Error(err)
	}
	down.Store(true)
	_, err = c.PreStartContainer(t.Context(), &v1beta1.PreStartContainerRequest{DevicesIds: []string{"A::1"}})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("PreStartContainer: %v", err)
	}
	for _, part := range []string{"the container cannot start", "the NRI plugin is not running", "retries"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
}

func TestAllocateErrors(t *testing.T) {
	t.Parallel()
	full := fmt.Errorf("write /var/lib/x.json: %w", errors.New("no space left on device"))
	for _, test := range []struct {
		name       string
		containers [][]string
		fail       func(n int) error
		wantCode   codes.Code
		wantErr    string
		discarded  int
	}{
		{name: "no container", containers: nil, wantCode: codes.OK},
		{name: "bad ID in the last container", containers: [][]string{{"A::0"}, {"A::1", "X::0"}}, wantCode: codes.InvalidArgument, wantErr: `"X::0"`},
		{name: "container without ID", containers: [][]string{{"A::0"}, {}}, wantCode: codes.InvalidArgument, wantErr: "without replicas"},
		{name: "disk full", containers: [][]string{{"A::0"}}, fail: func(int) error { return full }, wantCode: codes.Internal, wantErr: "/var/lib/x.json"},
		{name: "second record fails", containers: [][]string{{"A::0"}, {"A::1"}}, fail: func(n int) error {
			if n == 1 {
				return errors.New("disk /dev/x broke")
			}
			return nil
		}, wantCode: codes.Internal, wantErr: "disk /dev/x broke", discarded: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			recorder := &memoryRecorder{fail: test.fail}
			s := testService(recorder, displayGPU("A"))
			_, err := s.Allocate(t.Context(), allocateRequest(test.containers...))
			if status.Code(err) != test.wantCode || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("error %v, want %s with %q", err, test.wantCode, test.wantErr)
			}
			if len(recorder.live) != 0 || len(recorder.discarded) != test.discarded {
				t.Errorf("%d records are left and %d taken back, want none and %d", len(recorder.live), len(recorder.discarded), test.discarded)
			}
		})
	}
}

func TestAllocateCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	recorder := &memoryRecorder{fail: func(int) error { cancel(); return nil }}
	if _, err := testService(recorder, displayGPU("A")).Allocate(ctx, allocateRequest([]string{"A::0"})); status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	if len(recorder.live) != 0 {
		t.Error("the record is still there")
	}
}

func TestPreferredAllocationErrors(t *testing.T) {
	t.Parallel()
	_, err := testService(&memoryRecorder{}, displayGPU("A")).GetPreferredAllocation(t.Context(), &v1beta1.PreferredAllocationRequest{
		ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: []string{"A::0"}, AllocationSize: 2}}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
}

func TestPreStartIsBounded(t *testing.T) {
	t.Parallel()
	s := testService(&memoryRecorder{}, displayGPU("A"))
	s.config.Ready = func(ctx context.Context, _ Start) error {
		deadline, ok := ctx.Deadline()
		if !ok || time.Until(deadline) > readyTimeout {
			t.Errorf("deadline %v, %v", deadline, ok)
		}
		return nil
	}
	if _, err := s.PreStartContainer(t.Context(), &v1beta1.PreStartContainerRequest{}); err != nil {
		t.Error(err)
	}
}

func testService(recorder Recorder, devices ...discovery.Device) *service {
	config := Config{
		Recorder: recorder, Ready: func(context.Context, Start) error { return nil },
		Observer: (*metrics.Metrics)(nil), Log: testutil.Quiet(),
	}
	return &service{
		resource: ResourceDisplay, pools: newBroadcaster(poolOf(4, devices...)), config: &config,
		status: newStatusTracker(), log: config.Log, allocated: func() {},
		stopping: make(chan struct{}), watchers: newWatchers(),
	}
}
