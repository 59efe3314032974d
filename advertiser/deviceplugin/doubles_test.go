package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
	"github.com/directx-nri/directx-nri/test/bed/fakekubelet"
)

const (
	displayResource = "directx.microsoft.com/display"
	computeResource = "directx.microsoft.com/compute"
)

// memorySource is a source that a test changes.
type memorySource struct {
	mu      sync.Mutex
	devices []discovery.Device
	err     error
	// listed is the number of calls of Devices.
	listed int
}

func newSource(devices ...discovery.Device) *memorySource { return &memorySource{devices: devices} }

func (s *memorySource) Devices(ctx context.Context) ([]discovery.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed++
	return slices.Clone(s.devices), errors.Join(s.err, ctx.Err())
}

func (s *memorySource) lists() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed
}

// awaitRefreshes waits until the advertiser has refreshed some more times. It begins each refresh
// with a list.
func (s *memorySource) awaitRefreshes(t testing.TB) {
	t.Helper()
	before := s.lists()
	testutil.Eventually(t, "further refreshes", func() bool { return s.lists() > before+5 })
}

func (s *memorySource) set(err error, devices ...discovery.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.devices, s.err = devices, err
}

// memoryPods is the kubelet's list of pods.
type memoryPods struct {
	mu    sync.Mutex
	names []string
	err   error
}

func (p *memoryPods) list(context.Context) ([]containerDevices, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var containers []containerDevices
	for _, name := range p.names {
		containers = append(containers, containerDevices{pod: podName{"default", name}})
	}
	return containers, p.err
}

func (p *memoryPods) tracker() *PodTracker { return &PodTracker{now: time.Now, list: p.list} }

func (p *memoryPods) set(err error, names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names, p.err = names, err
}

// kubelet stands in for the kubelet's device manager.
type kubelet struct {
	*fakekubelet.Kubelet
	t   testing.TB
	dir string
}

func startKubelet(t testing.TB, dir string) *kubelet {
	t.Helper()
	k, err := fakekubelet.Start(dir, "")
	testutil.NoError(t, err)
	t.Cleanup(k.Stop)
	return &kubelet{k, t, dir}
}

// client returns the newest endpoint of resource, waiting for it.
func (k *kubelet) client(resource string) *fakekubelet.Endpoint {
	k.t.Helper()
	testutil.Eventually(k.t, "registration of "+resource, func() bool { return k.Endpoint(resource) != nil })
	return k.Endpoint(resource)
}

// await waits until the newest list of resource is want: IDs in the order of
// the list, "!" after those that are Unhealthy.
func (k *kubelet) await(resource, want string) {
	k.t.Helper()
	got := "no list"
	for deadline := time.Now().Add(testutil.Timeout); got != want; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			k.t.Fatalf("%s: got %q, want %q", resource, got, want)
		}
		if e := k.Endpoint(resource); e != nil {
			got = newest(e)
		}
	}
}

func newest(e *fakekubelet.Endpoint) string {
	devices, lists, ended := e.Listed()
	if ended != nil || lists == 0 {
		return fmt.Sprintf("no list (%v)", ended)
	}
	var words []string
	for _, d := range devices {
		word := named(d.GetID())
		if d.GetHealth() != v1beta1.Healthy {
			word += "!"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// idOf returns the ID of a replica, which is written as the GPU's instance ID and its number: "A-0".
func idOf(replica string) string {
	gpu, number, ok := strings.Cut(replica, "-")
	if !ok {
		return replica
	}
	return allocation.GPUKey(gpu) + "-" + number
}

func idsOf(replicas []string) (ids []string) {
	for _, replica := range replicas {
		ids = append(ids, idOf(replica))
	}
	return ids
}

// named is the opposite of idOf, for GPUs whose instance ID is a letter.
func named(id string) string {
	for gpu := 'A'; gpu <= 'Z'; gpu++ {
		id = strings.ReplaceAll(id, allocation.GPUKey(string(gpu)), string(gpu))
	}
	return id
}

// running is an advertiser under test.
type running struct {
	*Plugin
	cancel context.CancelFunc
	ended  chan error
}

// fastTiming makes everything happen soon. Nothing below depends on how soon.
func fastTiming() timing {
	return timing{
		pollInterval: 20 * time.Millisecond, unwatchedInterval: time.Millisecond,
		recheckInterval: 20 * time.Millisecond, watchTimeout: 500 * time.Millisecond,
		settleTime: 5 * time.Millisecond, stopTimeout: time.Second, allocateTimeout: 2 * time.Second,
	}
}

// twoKinds are the rules that are in force with no configuration, but that drivers may be mixed.
func twoKinds(replicas int) []policy.ResourceRule {
	return []policy.ResourceRule{
		{Name: displayResource, Match: policy.Match{Kind: "display"}, Replicas: replicas, AllocationPolicy: policy.Distributed, MixedDrivers: policy.AllowMixed},
		{Name: computeResource, Match: policy.Match{Kind: "compute"}, Replicas: replicas, AllocationPolicy: policy.Distributed, MixedDrivers: policy.AllowMixed},
	}
}

func testConfig(t testing.TB, dir string, source *memorySource) Config {
	t.Helper()
	return Config{
		ListDevices: source.Devices, Recorder: allocationtest.Open(t, filepath.Join(t.TempDir(), "records")),
		Policy: policy.Policy{Resources: twoKinds(2)}, NodeOS: "linux", KubeletDir: dir,
		CheckStart: func(context.Context) error { return nil }, OnDevices: func([]resources.Device) {},
		Pods: (&memoryPods{}).tracker(), Metrics: metrics.New("p", "v"), Log: testutil.Quiet(),
	}
}

// scrape returns the page of the metrics.
func scrape(m *metrics.Metrics) string {
	page := httptest.NewRecorder()
	m.Handler(testutil.Quiet()).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return page.Body.String()
}

// bed is a kubelet and what an advertiser has beside it.
type bed struct {
	*kubelet
	source  *memorySource
	records string // the directory
	pods    *memoryPods
	log     lineLog
	config  Config
}

func newBed(t testing.TB, devices ...discovery.Device) *bed {
	t.Helper()
	b := &bed{kubelet: startKubelet(t, testutil.ShortDir(t)), source: newSource(devices...), records: filepath.Join(t.TempDir(), "records"), pods: &memoryPods{}}
	b.config = testConfig(t, b.dir, b.source)
	b.config.Recorder, b.config.Pods = allocationtest.Open(t, b.records), b.pods.tracker()
	b.config.Log, b.log = newLog()
	return b
}

func (b *bed) run() *running { return run(b.t, b.config) }

// allocate allocates replicas of the display resource to a container and returns the ID of the record.
func (b *bed) allocate(ids ...string) allocation.ID {
	b.t.Helper()
	answer, err := b.client(displayResource).Allocate(b.t.Context(), allocateRequest(ids))
	testutil.NoError(b.t, err)
	id, err := allocation.ParseID(answer.GetContainerResponses()[0].GetAnnotations()["directx.microsoft.com/allocation.display"])
	testutil.NoError(b.t, err)
	return id
}

// bind binds a record to a container of the pod with UID "a".
func (b *bed) bind(id allocation.ID) {
	b.t.Helper()
	allocationtest.Bind(b.t, b.records, id, *bound("a", allocation.Entry{}).Holder)
}

func run(t testing.TB, config Config) *running {
	t.Helper()
	return runWith(t, config, fastTiming())
}

func runWith(t testing.TB, config Config, timing timing) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	a := newPlugin(ctx, config, timing)
	r := &running{Plugin: a, cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- a.Run(ctx) }()
	t.Cleanup(func() { r.stop(t) })
	return r
}

// stop ends Run, which must return nil. It may be called again.
func (r *running) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	if err := r.wait(t); err != nil {
		t.Errorf("Run: %v", err)
	}
	r.ended <- nil
}

// wait returns what Run returns.
func (r *running) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(testutil.Timeout):
		t.Fatal("Run does not return")
		return nil
	}
}

// lineLog keeps what is logged.
type lineLog struct{ hook *logtest.Hook }

func newLog() (*logrus.Logger, lineLog) {
	log, hook := logtest.NewNullLogger()
	return log, lineLog{hook}
}

// with returns the lines that have part in them.
func (l lineLog) with(part string) (lines []string) {
	for _, entry := range l.hook.AllEntries() {
		if line, err := entry.String(); err != nil || strings.Contains(line, part) {
			lines = append(lines, line)
		}
	}
	return lines
}
