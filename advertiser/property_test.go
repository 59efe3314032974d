package advertiser

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/advertiser/resources"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/localgrpc"
	"directx-nri/internal/metrics"
	"directx-nri/internal/policy"
	"directx-nri/internal/testutil"
)

// TestNeverHeldTwice runs an advertiser through random histories: GPUs, rules, pods
// and time change, and the advertiser and the kubelet restart. After every step it
// checks what must always hold.
func TestNeverHeldTwice(t *testing.T) {
	t.Parallel()
	seeds := uint64(300)
	if testing.Short() {
		seeds = 50
	}
	dir := t.TempDir()
	displaced, refused, ended, left := 0, 0, 0, 0
	for seed := range seeds {
		w := newSimulation(t, seed, dir)
		for range 60 {
			w.step()
			w.check()
		}
		w.end()
		displaced += w.displaced
		refused += w.refused
		ended += w.ended
		left += len(w.recorder.live)
	}
	t.Logf("%d looks at displaced GPUs, %d refusals, %d records ended and %d did not", displaced, refused, ended, left)
	if displaced == 0 || refused == 0 || ended == 0 {
		t.Error("the histories do not cover everything")
	}
}

// simulation is one history.
type simulation struct {
	t      *testing.T
	seed   uint64
	random *rand.Rand
	now    time.Time
	dir    string
	log    []string
	// displaced counts GPUs that are offered under another name than their rule's.
	displaced, refused, ended int

	source   *memorySource
	recorder *memoryRecorder
	tracker  *PodTracker
	metrics  *metrics.Metrics
	// rules are in force, past were before.
	rules, past []policy.Resource
	a           *Advertiser

	// The kubelet's stand-in: its socket's version, whether it watches our lists, the
	// lists that it received (true is healthy), and its pods. It lists them if it has
	// reached the API server.
	socket    int
	watching  bool
	lists     map[string]map[string]bool
	pods      []*fakePod
	nextPod   int
	listing   error
	connected bool
}

type fakePod struct {
	uid        string
	containers []fakeContainer
}

type fakeContainer struct {
	resource string
	ids      []string
	token    allocation.Token
	init     bool
}

func newSimulation(t *testing.T, seed uint64, dir string) *simulation {
	t.Helper()
	w := &simulation{t: t, seed: seed, metrics: metrics.New("p", "v"), random: rand.New(rand.NewPCG(seed, 7)), now: t0, dir: dir, watching: true, connected: true}
	w.recorder = &memoryRecorder{fail: func(int) error {
		if w.random.IntN(12) == 0 {
			return errors.New("the disk is full")
		}
		return nil
	}}
	w.source = newSource(w.randomDevices()...)
	w.rules = w.randomRules()
	w.tracker = &PodTracker{now: func() time.Time { return w.now }, list: func(context.Context) ([]ContainerDevices, error) { return w.listed(), w.listing }}
	w.newSocket()
	w.startAdvertiser()
	return w
}

func (w *simulation) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d: %s\nafter:\n%s", w.seed, fmt.Sprintf(format, args...), strings.Join(w.log, "\n"))
}

func (w *simulation) newSocket() {
	w.socket++
	path := filepath.Join(w.dir, kubeletSocket)
	err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, at(w.socket), at(w.socket)))
	if err != nil {
		w.fail("%v", err)
	}
}

// startAdvertiser begins a new run.
func (w *simulation) startAdvertiser() {
	w.a = New(Config{Source: w.source, Recorder: w.recorder, Resources: w.rules, NodeOS: "linux", KubeletDir: w.dir, Log: testutil.Quiet(), Pods: w.tracker, Metrics: w.metrics})
	w.a.now = func() time.Time { return w.now }
	if err := w.a.start(w.t.Context()); err != nil {
		w.fail("start: %v", err)
	}
	w.setWatching(w.watching)
	w.lists = map[string]map[string]bool{}
}

func (w *simulation) setWatching(watching bool) {
	w.watching = watching
	for _, s := range w.a.servers {
		s.streams = 0
		if watching {
			s.streams = 1
		}
	}
}

// listed is the kubelet's answer: init containers are not in it, and pods of the API
// server only if that was reached.
func (w *simulation) listed() (containers []ContainerDevices) {
	containers = append(containers, ContainerDevices{Pod: Pod{"kube-system", "proxy-node"}}, ContainerDevices{Pod: Pod{"kube-system", "etcd-node"}})
	if !w.connected {
		return containers
	}
	containers = append(containers, ContainerDevices{Pod: Pod{"kube-system", "agent-x7"}})
	for _, p := range w.pods {
		pod := Pod{"default", "name-of-" + p.uid}
		containers = append(containers, ContainerDevices{Pod: pod, Container: "sidecar"})
		for _, c := range p.containers {
			if !c.init {
				containers = append(containers, ContainerDevices{Pod: pod, Container: "main", Replicas: map[string][]string{c.resource: c.ids}})
			}
		}
	}
	return containers
}

// refresh is one look of the advertiser, and a new run if that is due.
func (w *simulation) refresh() {
	before := len(w.recorder.live)
	if err := w.a.look(w.t.Context()); err != nil {
		if !errors.Is(err, ErrRestart) {
			w.fail("%v", err)
		}
		w.log = append(w.log, "  restart")
		w.startAdvertiser()
	}
	w.ended += before - len(w.recorder.live)
}

func (w *simulation) step() {
	steps := []struct {
		name   string
		weight int
		do     func()
	}{
		{"GPUs change", 2, func() { w.source.set(nil, w.randomDevices()...) }},
		{"rules change", 4, w.changeRules},
		{"the advertiser looks", 6, w.refresh},
		{"the kubelet receives lists", 6, w.receive},
		{"a pod comes", 12, w.admit},
		{"a container presents its token", 6, w.present},
		{"a pod goes", 4, w.remove},
		{"the advertiser restarts", 1, func() {
			if w.random.IntN(3) == 0 {
				w.tracker.kubelet = localgrpc.Identity{} // a new process
			}
			w.startAdvertiser()
		}},
		{"the kubelet restarts", 1, func() {
			w.lists = map[string]map[string]bool{}
			w.connected = false
			w.setWatching(false)
		}},
		{"the kubelet registers plugins", 3, func() {
			if !w.watching {
				w.newSocket()
				w.setWatching(true)
			}
		}},
		{"the kubelet reaches the API server", 3, func() { w.connected = w.watching }},
		{"the kubelet lists pods or does not", 1, func() {
			w.listing = nil
			if w.random.IntN(3) == 0 {
				w.listing = errors.New("busy")
			}
		}},
		{"time passes", 5, func() { w.now = w.now.Add(time.Duration(w.random.IntN(30)) * time.Second) }},
	}
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	n := w.random.IntN(total)
	for _, s := range steps {
		if n -= s.weight; n < 0 {
			w.log = append(w.log, s.name)
			s.do()
			return
		}
	}
}

// changeRules begins a run with other rules, often those before the last.
func (w *simulation) changeRules() {
	before := w.rules
	w.rules = w.randomRules()
	if w.past != nil && w.random.IntN(2) == 0 {
		w.rules = w.past
	}
	w.past = before
	w.startAdvertiser()
}

func (w *simulation) receive() {
	for resource := range w.a.servers {
		if w.watching && w.random.IntN(2) == 0 {
			list := map[string]bool{}
			for _, d := range w.pool(resource).list().GetDevices() {
				list[d.GetID()] = d.GetHealth() == v1beta1.Healthy
			}
			w.lists[resource] = list
		}
	}
}

func (w *simulation) pool(resource string) *pool {
	p, _ := w.a.servers[resource].current()
	return p
}

func (w *simulation) held(resource string) map[string]bool {
	ids := map[string]bool{}
	for _, p := range w.pods {
		for _, c := range p.containers {
			if c.resource == resource {
				for _, id := range c.ids {
					ids[id] = true
				}
			}
		}
	}
	return ids
}

// admit does as the kubelet's device manager does for a pod of one container,
// sometimes with an init container that asks for as much.
func (w *simulation) admit() {
	if len(w.lists) == 0 || !w.connected {
		return
	}
	resource := pick(w.random, slices.Sorted(maps.Keys(w.lists)))
	size := 1 + w.random.IntN(4)
	w.nextPod++
	pod := &fakePod{uid: fmt.Sprintf("%d", w.nextPod)}
	held := w.held(resource)
	var available []string
	for id, healthy := range w.lists[resource] {
		if healthy && !held[id] {
			available = append(available, id)
		}
	}
	slices.Sort(available)
	if len(available) < size {
		return
	}
	ids := available[:size]
	// With NUMA hints it may not ask.
	if w.random.IntN(4) > 0 {
		answer, err := w.a.servers[resource].GetPreferredAllocation(w.t.Context(), &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: available, AllocationSize: int32(size)}}})
		if err != nil {
			w.refused++
			return
		}
		ids = answer.GetContainerResponses()[0].GetDeviceIDs()
	}
	if w.random.IntN(5) == 0 {
		w.log = append(w.log, "rules change before Allocate")
		w.changeRules()
		if w.a.servers[resource] == nil {
			return
		}
	}
	// An init container may come first, or be the only one with GPUs.
	count := 1 + w.random.IntN(2)
	initOnly := w.random.IntN(8) == 0
	for n := range count {
		p := w.pool(resource)
		answer, err := w.a.servers[resource].Allocate(w.t.Context(), allocateRequest(ids))
		if err != nil {
			w.refused++
			break
		}
		w.checkRule(p, ids)
		token := answer.GetContainerResponses()[0].GetEnvs()[allocation.EnvKey(resource)]
		pod.containers = append(pod.containers, fakeContainer{resource: resource, ids: ids, token: allocation.Token(token), init: n+1 < count || initOnly})
		w.log = append(w.log, fmt.Sprintf("  pod %s has %v of %s", pod.uid, ids, resource))
	}
	if len(pod.containers) > 0 {
		w.pods = append(w.pods, pod)
	}
}

func (w *simulation) checkRule(p *pool, ids []string) {
	drivers := map[driver]bool{}
	for _, id := range ids {
		i, _, err := p.find(id)
		if err != nil {
			w.fail("%s was allocated: %v", id, err)
		}
		drivers[p.gpus[i].driver] = true
	}
	if len(drivers) > 1 && !p.rule.MixedDrivers {
		w.fail("%v mix drivers", ids)
	}
	if limit := p.rule.MaxPerContainer; limit > 0 && len(ids) > limit {
		w.fail("%v are more than %d", ids, limit)
	}
}

func (w *simulation) present() {
	if len(w.pods) == 0 {
		return
	}
	pod := pick(w.random, w.pods)
	c := pick(w.random, pod.containers)
	for i, record := range w.recorder.live {
		if record.ID == c.token.ID() {
			w.recorder.live[i] = bound(pod.uid, record)
		}
	}
}

func (w *simulation) remove() {
	if len(w.pods) == 0 {
		return
	}
	pod := pick(w.random, w.pods)
	w.log = append(w.log, "  pod "+pod.uid)
	w.pods = slices.DeleteFunc(w.pods, func(p *fakePod) bool { return p == pod })
}

// check checks what must hold at every moment.
func (w *simulation) check() {
	usable := map[string]string{}
	rule := map[string]string{}
	for _, d := range resources.Assign(w.source.devices, w.rules, "linux") {
		if d.Rule != nil {
			rule[d.Device.InstanceID] = d.Rule.Name
		}
	}
	for resource := range w.a.servers {
		for _, g := range w.pool(resource).gpus {
			if !g.usable() {
				continue
			}
			if other, twice := usable[g.instanceID]; twice {
				w.fail("%s is offered as %s and as %s", g.instanceID, other, resource)
			}
			usable[g.instanceID] = resource
			if name := rule[g.instanceID]; name != "" && name != resource {
				w.displaced++
			}
		}
	}
	replicaOf, gpuAs := map[string]string{}, map[string]string{}
	for _, pod := range w.pods {
		for _, c := range pod.containers {
			i := slices.IndexFunc(w.recorder.live, func(r allocation.Entry) bool { return r.ID == c.token.ID() })
			if i < 0 {
				w.fail("the record of pod %s is lost", pod.uid)
			}
			record := w.recorder.live[i]
			if len(record.Replicas) != len(c.ids) || record.Resource != c.resource {
				w.fail("pod %s has %v of %s, and its record says %v", pod.uid, c.ids, c.resource, record)
			}
			for n, id := range c.ids {
				instance, number, _ := ParseReplicaID(id)
				if record.Replicas[n].ID != id {
					w.fail("pod %s has %v, and its record says %v", pod.uid, c.ids, record.Replicas)
				}
				if holder := replicaOf[c.resource+id]; holder != "" && holder != pod.uid {
					w.fail("%s is held by pods %s and %s", id, holder, pod.uid)
				}
				replicaOf[c.resource+id] = pod.uid
				if as := gpuAs[instance]; as != "" && as != c.resource {
					w.fail("%s is held as %s and as %s", instance, as, c.resource)
				}
				gpuAs[instance] = c.resource
				// The kubelet looks up what it has allocated.
				if w.a.servers[c.resource] == nil {
					w.fail("pod %s holds %s, which is not served", pod.uid, c.resource)
				}
				p := w.pool(c.resource)
				if i, ok := p.index[instance]; !ok || number >= p.gpus[i].listed {
					w.fail("pod %s holds %s, which is not listed", pod.uid, id)
				}
			}
		}
	}
}

// end removes all pods, and checks that all bound records end, and that every GPU which
// no record holds is offered by its rule.
func (w *simulation) end() {
	w.log = append(w.log, "the end")
	w.listing, w.connected = nil, true
	w.newSocket()
	w.setWatching(true)
	for round := range 10 {
		w.now = w.now.Add(21 * time.Second)
		w.refresh()
		if round == 1 {
			w.pods = nil // They have been listed.
		}
	}
	w.check()
	var wanted []string
	for _, rule := range w.rules {
		wanted = append(wanted, rule.Name)
	}
	for _, record := range w.recorder.live {
		if record.Holder != nil {
			w.fail("the record of %s does not end", record.Holder)
		}
		wanted = append(wanted, record.Resource)
	}
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	if names := slices.Sorted(maps.Keys(w.a.servers)); !slices.Equal(names, wanted) {
		w.fail("%v are served at the end, want %v", names, wanted)
	}
	for _, d := range resources.Assign(w.source.devices, w.rules, "linux") {
		if d.Rule == nil || !d.Device.Health.OK() {
			continue
		}
		if _, held := heldAs(w.recorder.live, d.Device.InstanceID, d.Rule.Name); held {
			continue
		}
		p := w.pool(d.Rule.Name)
		if g := p.gpus[p.index[d.Device.InstanceID]]; !g.usable() || g.replicas != d.Rule.Replicas {
			w.fail("%s is not back: %+v", d.Device.InstanceID, g)
		}
	}
}

func (w *simulation) randomDevices() []discovery.Device {
	var devices []discovery.Device
	for i := range 5 {
		if w.random.IntN(6) == 0 {
			continue
		}
		d := displayGPU(fmt.Sprintf("G%d", i))
		d.DriverVersion = fmt.Sprint(i % 2)
		d.Description = fmt.Sprintf("model %d", i/2)
		d.SupportsDisplay = i != 4
		if w.random.IntN(8) == 0 {
			d.Health.Reason = "driver stopped"
		}
		if w.random.IntN(2) == 0 {
			node := i % 2
			d.NUMANode = &node
		}
		devices = append(devices, d)
	}
	w.random.Shuffle(len(devices), func(i, j int) { devices[i], devices[j] = devices[j], devices[i] })
	return devices
}

func (w *simulation) randomRules() []policy.Resource {
	names := []string{displayResource, computeResource, "example.com/gpu", "example.com/other"}
	on := map[string]policy.Resource{}
	for _, name := range names {
		on[name] = policy.Resource{
			Name:            name,
			Policy:          pick(w.random, []policy.AllocationPolicy{policy.Distributed, policy.Packed}),
			MaxPerContainer: pick(w.random, []int{0, 0, 2}),
			MixedDrivers:    w.random.IntN(2) == 0,
		}
	}
	rules := make([]policy.Resource, 0, 4)
	for range 1 + w.random.IntN(4) {
		rule := on[pick(w.random, names)]
		rule.Replicas = 1 + w.random.IntN(4)
		rule.Match = pick(w.random, []policy.Match{{}, {Kind: "display"}, {Kind: "compute"}, {Descriptions: []string{"model 0"}}, {Descriptions: []string{"*1"}}})
		rules = append(rules, rule)
	}
	return rules
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }
