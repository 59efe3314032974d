package advertiser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/config"
	"directx-nri/internal/testutil"
)

const renamed = "example.com/gpu"

func ruleFor(name string, replicas int, match config.Match) config.Resource {
	return config.Resource{Name: name, Match: match, Replicas: replicas, Policy: config.Distributed}
}

// TestResourcesComeAndGo follows a GPU that moves to another resource while a
// pod holds it.
func TestResourcesComeAndGo(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	setup := testConfig(t, dir, newSource(displayGPU("A"), displayGPU("B"), computeGPU("C")))
	recorder, pods, log := &memoryRecorder{}, &memoryPods{}, &lineLog{}
	setup.Recorder, setup.Pods, setup.Log = recorder, pods.list, log.logger()
	pods.set(nil, "default/name-of-a")
	r := run(t, setup)
	k.await(ResourceDisplay, "A::0 A::1 B::0 B::1")
	k.await(ResourceCompute, "C::0 C::1")
	display := k.client(ResourceDisplay)
	if _, err := display.Allocate(t.Context(), allocateRequest([]string{"A::1"})); err != nil {
		t.Fatal(err)
	}
	recorder.bind()
	recorder.awaitLooks(t)

	r.SetResources([]config.Resource{ruleFor(renamed, 1, config.Match{Kind: "display"}), ruleFor(ResourceCompute, 3, config.Match{})})
	k.await(ResourceCompute, "C::0 C::1 C::2")
	k.await(renamed, "A::0! B::0")
	if lines := log.with("it is still held as " + ResourceDisplay); len(lines) != 1 {
		t.Errorf("logged %q, want one line that says why A cannot be allocated", lines)
	}
	_, err := k.client(renamed).Allocate(t.Context(), allocateRequest([]string{"A::0"}))
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "still held as "+ResourceDisplay) {
		t.Errorf("allocated what is held by another name: %v", err)
	}
	_, err = display.Allocate(t.Context(), allocateRequest([]string{"B::0"}))
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("allocated by a name that has no GPU any more: %v", err)
	}
	// B was not held: nothing of it stays. A's holder may be started again.
	k.await(ResourceDisplay, "A::0! A::1!")
	if _, err := display.PreStartContainer(t.Context(), &v1beta1.PreStartContainerRequest{DevicesIds: []string{"A::1"}}); err != nil {
		t.Errorf("the holder cannot be started: %v", err)
	}

	// After a restart only the record tells.
	r.stop(t)
	setup.Resources = []config.Resource{ruleFor(renamed, 1, config.Match{Kind: "display"}), ruleFor(ResourceCompute, 3, config.Match{})}
	r = run(t, setup)
	k.await(renamed, "A::0! B::0")
	k.await(ResourceDisplay, "A::0! A::1!")
	recorder.awaitLooks(t)
	k.await(renamed, "A::0! B::0")

	pods.set(nil)
	k.await(renamed, "A::0 B::0")
	socket := filepath.Join(dir, SocketName(ResourceDisplay))
	eventually(t, "removal of the socket", func() bool { _, err := os.Lstat(socket); return errors.Is(err, os.ErrNotExist) })
	eventually(t, "end of the stream", func() bool { return k.client(ResourceDisplay).end() != nil })

	r.SetResources(twoKinds(2))
	k.await(ResourceDisplay, "A::0 A::1 B::0 B::1")
}

// TestRulesChangeWhileGPUsCannotBeListed: they are for the GPUs known last.
func TestRulesChangeWhileGPUsCannotBeListed(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	source := newSource(displayGPU("A"))
	r := run(t, testConfig(t, dir, source))
	k.await(ResourceDisplay, "A::0 A::1")
	source.set(errors.New("half a file"))
	r.SetResources([]config.Resource{ruleFor(renamed, 3, config.Match{})})
	k.await(renamed, "A::0 A::1 A::2")
}

// TestClearOnce: what was found to be held by nobody is not asked about again,
// although a kubelet that has restarted cannot say so any more.
func TestClearOnce(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	setup := testConfig(t, dir, newSource(displayGPU("A")))
	recorder, pods := &memoryRecorder{live: []allocation.LiveRecord{bound("a", held("example.com/old", "A::0"))}}, &memoryPods{}
	pods.set(nil, "default/name-of-a")
	setup.Recorder, setup.Pods = recorder, pods.list
	run(t, setup)
	k.await(ResourceDisplay, "A::0! A::1!")
	k.await("example.com/old", "A::0!")
	recorder.awaitLooks(t)
	pods.set(nil)
	k.await(ResourceDisplay, "A::0 A::1")
	pods.set(errors.New("connection refused"))
	k.stop()
	k = startKubelet(t, dir)
	k.await(ResourceDisplay, "A::0 A::1")
	recorder.awaitLooks(t)
	k.await(ResourceDisplay, "A::0 A::1")
}

// TestKubeletsBooksTell: records of pods that were never seen do not keep a GPU
// from another resource when the kubelet's checkpoint says that nobody has it.
func TestKubeletsBooksTell(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	setup := testConfig(t, dir, newSource(displayGPU("A"), displayGPU("B")))
	setup.Recorder = &memoryRecorder{live: []allocation.LiveRecord{held("example.com/old", "A::0"), held("example.com/old", "B::0")}}
	books := `{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"example.com/old","DeviceIDs":{"-1":["B::0"]},"AllocResp":""}],"RegisteredDevices":{}},"Checksum":1}`
	if err := os.WriteFile(filepath.Join(dir, kubeletCheckpoint), []byte(books), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, setup)
	k.await(ResourceDisplay, "A::0 A::1 B::0! B::1!")
	k.await("example.com/old", "B::0!")
}

func TestParseBooks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, data, wantErr string
		want                books
	}{
		{name: "two pods", data: `{"Data":{"PodDeviceEntries":[
			{"PodUID":"1","ContainerName":"c","ResourceName":"r","DeviceIDs":{"-1":["A::0"],"1":["A::1"]},"AllocResp":"Cg=="},
			{"PodUID":"2","ContainerName":"c","ResourceName":"r","DeviceIDs":{"0":["B::0"]},"AllocResp":""},
			{"PodUID":"2","ContainerName":"c","ResourceName":"s","DeviceIDs":{"0":["X"]},"AllocResp":""}],"RegisteredDevices":{"r":["A::0"]}},"Checksum":4}`,
			want: books{"r": {"A::0": true, "A::1": true, "B::0": true}, "s": {"X": true}}},
		{name: "nobody", data: `{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":4}`, want: books{}},
		{name: "empty", data: ``, wantErr: "JSON"},
		{name: "no list", data: `{"Data":{"RegisteredDevices":{}}}`, wantErr: "no list"},
		{name: "another form", data: `{"Entries":[]}`, wantErr: "no list"},
		{name: "older form of IDs", data: `{"Data":{"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":["A::0"]}],"RegisteredDevices":{}}}`, wantErr: "DeviceIDs"},
		{name: "no resource", data: `{"Data":{"PodDeviceEntries":[{"Resource":"r","DeviceIDs":{"0":["A::0"]}}],"RegisteredDevices":{}}}`, wantErr: "names no resource"},
		{name: "no device", data: `{"Data":{"PodDeviceEntries":[{"ResourceName":"r","Devices":{"0":["A::0"]}}],"RegisteredDevices":{}}}`, wantErr: "no device"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseBooks([]byte(test.data))
			if test.wantErr != "" {
				if err == nil || got != nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("got %v, error %v, want one with %q", got, err, test.wantErr)
				}
				return
			}
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

// TestPoolsStayWhileARecordIsMade: a GPU cannot leave a resource between the
// look at it and the record.
func TestPoolsStayWhileARecordIsMade(t *testing.T) {
	t.Parallel()
	recorder := &memoryRecorder{}
	s := testService(recorder, displayGPU("A"))
	recorder.fail = func(int) error {
		if s.swap.TryLock() {
			s.swap.Unlock()
			return errors.New("the pools could be replaced")
		}
		return nil
	}
	if _, err := s.Allocate(t.Context(), allocateRequest([]string{"A::0"})); err != nil {
		t.Error(err)
	}
	if !s.swap.TryLock() {
		t.Error("the pools cannot be replaced afterwards")
	}
}

// TestWhatStaysKeepsItsGPUs: a resource whose new list would be too long stays
// as it was, and a GPU of it that belongs elsewhere now is not offered twice.
func TestWhatStaysKeepsItsGPUs(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	source := newSource(displayGPU("A"))
	r := run(t, testConfig(t, dir, source))
	k.await(ResourceDisplay, "A::0 A::1")
	a := displayGPU("A")
	a.Description = "moves"
	source.set(nil, append(bigNode(64), a)...)
	k.await(ResourceDisplay, listOf(64, 2)+" A::0 A::1")
	moves := ruleFor(renamed, 1, config.Match{Descriptions: []string{"moves"}})
	r.SetResources([]config.Resource{moves, ruleFor(ResourceDisplay, maxReplicas, config.Match{})})
	k.await(renamed, "A::0!")
	k.await(ResourceDisplay, listOf(64, 2)+" A::0 A::1")
	if _, err := k.client(ResourceDisplay).Allocate(t.Context(), allocateRequest([]string{"A::0"})); err != nil {
		t.Error(err)
	}
	r.SetResources([]config.Resource{moves, ruleFor(ResourceDisplay, 1, config.Match{})})
	k.await(ResourceDisplay, listOf(64, 1)+" A::0! A::1!")
	k.await(renamed, "A::0!")
}

// listOf is the list of a big node.
func listOf(gpus, replicas int) string {
	var ids []string
	for _, d := range bigNode(gpus) {
		for n := range replicas {
			ids = append(ids, replicaID(d.InstanceID, n))
		}
	}
	return strings.Join(ids, " ")
}

// TestReplicasPerModel: rules of one name with different replicas, and their
// change while GPUs are held.
func TestReplicasPerModel(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	small, big := displayGPU("S"), displayGPU("B")
	small.Description, big.Description = "NVIDIA Tesla T4", "NVIDIA A100"
	rules := func(ofSmall, ofBig int) []config.Resource {
		return []config.Resource{
			ruleFor(renamed, ofBig, config.Match{Descriptions: []string{"*a100"}}),
			ruleFor(renamed, ofSmall, config.Match{}),
		}
	}
	setup := testConfig(t, dir, newSource(small, big))
	setup.Resources = rules(1, 3)
	r := run(t, setup)
	k.await(renamed, "S::0 B::0 B::1 B::2")
	if _, err := k.client(renamed).Allocate(t.Context(), allocateRequest([]string{"B::2"})); err != nil {
		t.Fatal(err)
	}
	r.SetResources(rules(2, 1))
	k.await(renamed, "S::0 S::1 B::0 B::1! B::2!")
	if _, err := k.client(renamed).Allocate(t.Context(), allocateRequest([]string{"B::1"})); !strings.Contains(fmt.Sprint(err), "beyond the 1 replicas") {
		t.Errorf("allocated what is not offered any more: %v", err)
	}
}

// TestReloadUnderLoad: 100 pods come and go while the rules change 20 times.
// Each has what it was promised, in a record, and no two have the same.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, filepath.Join(dir, "dp"))
	recorder, err := allocation.OpenRecorder(t.Context(), filepath.Join(dir, "records"), testutil.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := recorder.Close(); err != nil {
			t.Error(err)
		}
	})
	var gpus []discovery.Device
	for i := range 4 {
		d := displayGPU(fmt.Sprintf("G%d", i))
		d.Description = fmt.Sprint(i)
		gpus = append(gpus, d)
	}
	setup := testConfig(t, k.dir, newSource(gpus...))
	setup.Recorder, setup.Resources = recorder, twoKinds(50)
	r := run(t, setup)
	k.client(ResourceDisplay)

	sets := [][]config.Resource{
		{ruleFor(renamed, 25, config.Match{}), ruleFor(ResourceDisplay, 50, config.Match{})},
		{ruleFor(renamed, 50, config.Match{Descriptions: []string{"1"}}), ruleFor(ResourceDisplay, 60, config.Match{})},
		twoKinds(50),
	}
	store := allocation.OpenStore(filepath.Join(dir, "records"))
	taken, heldAs := map[string]bool{}, map[string]string{}
	promised, changes := 0, 0
	for pod := 0; promised < 100; pod++ {
		if pod%5 == 0 && changes < 20 {
			r.SetResources(sets[changes%len(sets)])
			changes++
		}
		resource := []string{ResourceDisplay, renamed}[pod%3%2]
		instance := gpus[pod%len(gpus)].InstanceID
		id := replicaID(instance, pod/len(gpus)%50)
		if changes == 20 && heldAs[instance] == renamed || taken[resource+id] {
			// It stays renamed's, whose rules are gone.
			if pod > 2000 {
				break
			}
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), patienceOfTests)
		answer, err := k.client(resource).Allocate(ctx, allocateRequest([]string{id}))
		cancel()
		switch status.Code(err) {
		case codes.OK:
		case codes.InvalidArgument, codes.Unavailable, codes.Canceled:
			continue // The GPU is of another resource at this moment, or held as it.
		default:
			t.Fatal(err)
		}
		if as := heldAs[instance]; as != "" && as != resource {
			t.Fatalf("%s is held as %s, and was promised as %s", instance, as, resource)
		}
		token := allocation.Token(answer.GetContainerResponses()[0].GetEnvs()[allocation.EnvKey(resource)])
		record, err := store.Get(token)
		if err != nil || record.Resource != resource || !slices.Equal(record.Replicas, []allocation.Replica{{ID: id, InstanceID: instance}}) {
			t.Fatalf("pod %d was promised %s of %s, and its record says %v (error %v)", pod, id, resource, record, err)
		}
		taken[resource+id], heldAs[instance] = true, resource
		promised++
	}
	if changes != 20 || promised == 0 {
		t.Errorf("%d changes of the rules for %d promises", changes, promised)
	}
	live, err := recorder.Live()
	if err != nil || len(live) != promised {
		t.Errorf("%d records for %d promises (error %v)", len(live), promised, err)
	}
}

func TestSocketNames(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, resource := range []string{ResourceDisplay, ResourceCompute, renamed, "microsoft.com/directx", "windows.alibabacloud.com/directx", strings.Repeat("a", 200) + "/" + strings.Repeat("b", 63)} {
		name := SocketName(resource)
		if other, twice := seen[name]; twice || len(name) > len("directx-display.sock")+3 {
			t.Errorf("%s: %s, also of %q", resource, name, other)
		}
		seen[name] = resource
	}
}

// TestNameComesBackWhileItsEndpointEnds: the new endpoint waits for the old one,
// which still has the socket.
func TestNameComesBackWhileItsEndpointEnds(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	setup := testConfig(t, dir, newSource(displayGPU("A")))
	log, entered, release := &lineLog{}, make(chan struct{}), make(chan struct{})
	setup.Log = log.logger()
	setup.Ready = func(context.Context, Start) error {
		close(entered)
		<-release
		return nil
	}
	r := run(t, setup, func(a *Advertiser) { a.timing.stop = patienceOfTests })
	k.await(ResourceDisplay, "A::0 A::1")
	c := k.client(ResourceDisplay)
	called := make(chan error, 1)
	go func() {
		_, err := c.PreStartContainer(context.Background(), &v1beta1.PreStartContainerRequest{DevicesIds: []string{"A::0"}})
		called <- err
	}()
	<-entered
	r.SetResources([]config.Resource{ruleFor(renamed, 1, config.Match{})})
	eventually(t, "end of the name", func() bool { return !r.doors.has(SocketName(ResourceDisplay)) })
	r.SetResources(twoKinds(2))
	eventually(t, "return of the name", func() bool { return r.doors.has(SocketName(ResourceDisplay)) })
	time.Sleep(20 * time.Millisecond) // for some attempts to listen, if it did not wait
	close(release)
	if err := <-called; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	eventually(t, "another registration", func() bool { return k.client(ResourceDisplay) != c })
	k.await(ResourceDisplay, "A::0 A::1")
	if lines := log.with("cannot listen"); len(lines) != 0 {
		t.Errorf("logged %q", lines)
	}
}
