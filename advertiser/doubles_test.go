package advertiser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/metrics"
	"directx-nri/internal/policy"
	"directx-nri/internal/testutil"
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
	// failed is the number of failed calls of Devices.
	failed  int
	changed []func()
	// broken ends Watch with its error.
	broken chan error
}

func newSource(devices ...discovery.Device) *memorySource {
	return &memorySource{devices: devices, broken: make(chan error)}
}

func (s *memorySource) Devices(ctx context.Context) ([]discovery.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		s.failed++
	}
	return slices.Clone(s.devices), errors.Join(s.err, ctx.Err())
}

func (s *memorySource) failures() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func (s *memorySource) Find(ctx context.Context, instanceIDs []string) ([]discovery.Device, error) {
	devices, err := s.Devices(ctx)
	return discovery.Select(devices, instanceIDs), err
}

func (s *memorySource) Watch(ctx context.Context, changed func()) error {
	s.mu.Lock()
	s.changed = append(s.changed, changed)
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-s.broken:
		return err
	}
}

func (s *memorySource) set(err error, devices ...discovery.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.devices, s.err = devices, err
	for _, changed := range s.changed {
		changed()
	}
}

// memoryRecorder is a recorder without files.
type memoryRecorder struct {
	mu   sync.Mutex
	live []allocation.Entry
	// fail, if set, returns the error of the nth record, from 0.
	fail func(n int) error
	// made and ended count records, and read the calls of Live.
	made, ended, read int
}

func (r *memoryRecorder) Record(_ context.Context, resource string, replicas []allocation.Replica, injected bool) (allocation.Token, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.made
	r.made++
	if r.fail != nil {
		if err := r.fail(n); err != nil {
			return "", err
		}
	}
	token := allocation.Token(fmt.Sprintf("%032x", n))
	r.live = append(r.live, allocation.Entry{Record: allocation.Record{ID: token.ID(), Resource: resource, Replicas: replicas, Injected: injected}})
	return token, nil
}

func (r *memoryRecorder) Attribute(id allocation.ID, namespace, pod, container string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.live {
		if r.live[i].ID == id {
			r.live[i].Holder = &allocation.Holder{PodUID: "name:" + pod, Container: container, PodNamespace: namespace, PodName: pod}
		}
	}
	return nil
}

func (r *memoryRecorder) End(id allocation.ID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended++
	r.live = slices.DeleteFunc(r.live, func(record allocation.Entry) bool { return record.ID == id })
	return nil
}

func (r *memoryRecorder) Live() []allocation.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read++
	return slices.Clone(r.live)
}

// bind binds every record to a container of the pod with UID "a".
func (r *memoryRecorder) bind() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.live {
		r.live[i] = bound("a", r.live[i])
	}
}

// awaitLooks waits until the advertiser has read the records some more times.
func (r *memoryRecorder) awaitLooks(t testing.TB) {
	t.Helper()
	looks := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.read
	}
	before := looks()
	testutil.Eventually(t, "further looks at what is held", func() bool { return looks() > before+5 })
}

// memoryPods is the kubelet's list of pods.
type memoryPods struct {
	mu    sync.Mutex
	names []string
	err   error
}

func (p *memoryPods) list(context.Context) ([]ContainerDevices, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var containers []ContainerDevices
	for _, name := range p.names {
		containers = append(containers, ContainerDevices{Pod: Pod{"default", name}, Container: "main"})
	}
	return containers, p.err
}

func (p *memoryPods) tracker() *PodTracker { return &PodTracker{now: time.Now, list: p.list} }

func (p *memoryPods) set(err error, names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names, p.err = names, err
}

// kubelet stands in for the kubelet's device manager: it empties its directory
// when it starts, takes registrations, connects back, asks for the options and
// watches the list.
type kubelet struct {
	v1beta1.UnimplementedRegistrationServer

	t      testing.TB
	dir    string
	server *grpc.Server
	served chan struct{}
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	clients map[string]*client
	// requests are all registrations, oldest first.
	requests []*v1beta1.RegisterRequest
	watches  sync.WaitGroup
}

type client struct {
	v1beta1.DevicePluginClient
	conn *grpc.ClientConn

	mu sync.Mutex
	// lists are all lists received, ended is why no more will come.
	lists [][]*v1beta1.Device
	ended error
}

func startKubelet(t testing.TB, dir string) *kubelet {
	t.Helper()
	k := &kubelet{t: t, dir: dir, clients: map[string]*client{}, served: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	k.emptyDirectory()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, kubeletSocket), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	// A kubelet that is killed leaves its socket.
	listener.SetUnlinkOnClose(false)
	k.server = grpc.NewServer()
	v1beta1.RegisterRegistrationServer(k.server, k)
	go func() {
		defer close(k.served)
		_ = k.server.Serve(listener)
	}()
	t.Cleanup(k.stop)
	return k
}

func (k *kubelet) emptyDirectory() {
	k.t.Helper()
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(k.dir, entry.Name())); err != nil {
			k.t.Log(err)
		}
	}
}

// stop ends the kubelet as a kill does. It may be called again.
func (k *kubelet) stop() {
	k.cancel()
	k.server.Stop()
	<-k.served
	k.mu.Lock()
	for _, c := range k.clients {
		_ = c.conn.Close()
	}
	k.mu.Unlock()
	k.watches.Wait()
}

func (k *kubelet) Register(ctx context.Context, request *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	conn, err := dialUnix(filepath.Join(k.dir, request.GetEndpoint()))
	if err != nil {
		return nil, err
	}
	c := &client{DevicePluginClient: v1beta1.NewDevicePluginClient(conn), conn: conn}
	if _, err := c.GetDevicePluginOptions(ctx, &v1beta1.Empty{}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	stream, err := c.ListAndWatch(k.ctx, &v1beta1.Empty{})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return nil, errors.Join(k.ctx.Err(), conn.Close())
	}
	if old := k.clients[request.GetResourceName()]; old != nil {
		_ = old.conn.Close()
	}
	k.clients[request.GetResourceName()] = c
	k.requests = append(k.requests, request)
	k.watches.Add(1)
	go func() {
		defer k.watches.Done()
		for {
			list, err := stream.Recv()
			c.mu.Lock()
			if err != nil {
				c.ended = err
				c.mu.Unlock()
				return
			}
			c.lists = append(c.lists, list.GetDevices())
			c.mu.Unlock()
		}
	}()
	return &v1beta1.Empty{}, nil
}

func (k *kubelet) registrations() []*v1beta1.RegisterRequest {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.requests)
}

// client returns the newest client for resource, waiting for it.
func (k *kubelet) client(resource string) *client {
	k.t.Helper()
	var c *client
	testutil.Eventually(k.t, "registration of "+resource, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		c = k.clients[resource]
		return c != nil
	})
	return c
}

// await waits until the newest list of resource is want: IDs in the order of
// the list, "!" after those that are Unhealthy.
func (k *kubelet) await(resource, want string) {
	k.t.Helper()
	got := "no list"
	deadline := time.Now().Add(testutil.Timeout)
	for got != want {
		if time.Now().After(deadline) {
			k.t.Fatalf("%s: got %q, want %q", resource, got, want)
		}
		k.mu.Lock()
		if c := k.clients[resource]; c != nil {
			got = c.newest()
		}
		k.mu.Unlock()
		time.Sleep(2 * time.Millisecond)
	}
}

func (c *client) newest() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil || len(c.lists) == 0 {
		return fmt.Sprintf("no list (%v)", c.ended)
	}
	var words []string
	for _, d := range c.lists[len(c.lists)-1] {
		word := d.GetID()
		if d.GetHealth() != v1beta1.Healthy {
			word += "!"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func (c *client) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.lists)
}

func (c *client) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// dialUnix connects as the kubelet does, with gRPC's default limits.
func dialUnix(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// running is an advertiser under test.
type running struct {
	*Advertiser
	cancel context.CancelFunc
	ended  chan error
}

// fastTiming makes everything happen soon. Nothing below depends on how soon.
func fastTiming() timing {
	return timing{
		poll:          20 * time.Millisecond,
		recheck:       20 * time.Millisecond,
		afterAllocate: time.Millisecond,
		patience:      60 * time.Millisecond,
		watch:         500 * time.Millisecond,
		stop:          time.Second,
	}
}

// twoKinds are the rules that are in force with no configuration, but that
// drivers may be mixed.
func twoKinds(replicas int) []policy.Resource {
	return []policy.Resource{
		{Name: displayResource, Match: policy.Match{Kind: "display"}, Replicas: replicas, Policy: policy.Distributed, MixedDrivers: true},
		{Name: computeResource, Match: policy.Match{Kind: "compute"}, Replicas: replicas, Policy: policy.Distributed, MixedDrivers: true},
	}
}

func testConfig(t testing.TB, dir string, source discovery.Source) Config {
	t.Helper()
	return Config{
		Source:     source,
		Recorder:   &memoryRecorder{},
		Resources:  twoKinds(2),
		NodeOS:     "linux",
		KubeletDir: dir,
		Ready:      func(context.Context, string, []string) error { return nil },
		Pods:       (&memoryPods{}).tracker(),
		Metrics:    metrics.New("p", "v"),
		Log:        testutil.Quiet(),
	}
}

func run(t testing.TB, config Config, change ...func(*Advertiser)) *running {
	t.Helper()
	a := New(config)
	a.timing = fastTiming()
	for _, c := range change {
		c(a)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{Advertiser: a, cancel: cancel, ended: make(chan error, 1)}
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
