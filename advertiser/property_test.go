package advertiser

import (
	"context"
	"encoding/json"
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
	"directx-nri/internal/config"
	"directx-nri/internal/testutil"
)

// TestNeverHeldTwice runs an advertiser through random histories: GPUs, rules,
// pods and time change, and it and the kubelet restart. After every step it
// checks what must always hold.
func TestNeverHeldTwice(t *testing.T) {
	t.Parallel()
	seeds := uint64(300)
	if testing.Short() {
		seeds = 50
	}
	// The kubelet's socket must be there for [podWatch] to tell its runs apart.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, kubeletSocket), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	moved, refused := 0, 0
	for seed := range seeds {
		w := newWorld(t, seed, dir)
		for range 60 {
			w.step()
			w.check()
		}
		w.end()
		moved += w.blocked
		refused += w.refused
	}
	if moved == 0 || refused == 0 {
		t.Errorf("no history had a GPU that was held as something else (%d) or a refusal (%d)", moved, refused)
	}
}

// world is one history.
type world struct {
	t       *testing.T
	seed    uint64
	random  *rand.Rand
	now     time.Time
	dir     string
	log     []string
	blocked int
	refused int

	source   *memorySource
	recorder *memoryRecorder
	// rules are in force, past were before.
	rules, past []config.Resource
	a           *Advertiser

	// What the kubelet's stand-in knows: the lists as it last heard them (true is
	// healthy), and its pods. It lists pods once it has heard of them.
	lists   map[string]map[string]bool
	pods    []*standInPod
	nextPod int
	// books is the kubelet's checkpoint as it last wrote it.
	books    []byte
	listing  error
	ignorant bool
}

type standInPod struct {
	uid        string
	containers []standInContainer
}

type standInContainer struct {
	resource string
	ids      []string
	token    allocation.Token
}

func newWorld(t *testing.T, seed uint64, dir string) *world {
	t.Helper()
	w := &world{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 7)), now: t0, dir: dir, lists: map[string]map[string]bool{}}
	w.recorder = &memoryRecorder{now: func() time.Time { return w.now }, fail: func(int) error {
		if w.random.IntN(12) == 0 {
			return errors.New("the disk is full")
		}
		return nil
	}}
	w.source = newSource(w.randomDevices()...)
	w.rules = w.randomRules()
	w.startAdvertiser()
	return w
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d: %s\nafter:\n%s", w.seed, fmt.Sprintf(format, args...), strings.Join(w.log, "\n"))
}

func (w *world) startAdvertiser() {
	a, err := New(Config{
		Source: w.source, Recorder: w.recorder, Resources: w.rules, KubeletDir: w.dir, Log: testutil.Quiet(),
		Ready: func(context.Context, Start) error { return nil },
		Pods:  func(context.Context) (map[string]bool, error) { return w.listed(), w.listing },
	})
	if err != nil {
		w.fail("%v", err)
	}
	a.now = func() time.Time { return w.now }
	a.books = func() (books, error) { return parseBooks(w.books) }
	a.doors.run = func(func(context.Context) error) func() { return func() {} }
	w.a = a
	if err := a.begin(w.t.Context()); err != nil {
		w.fail("begin: %v", err)
	}
	w.lists = map[string]map[string]bool{}
}

func (w *world) listed() map[string]bool {
	names := map[string]bool{}
	if !w.ignorant {
		for _, p := range w.pods {
			names["default/name-of-"+p.uid] = true
		}
	}
	return names
}

func (w *world) refresh() {
	devices, err := w.source.Devices(w.t.Context())
	if err != nil {
		w.fail("%v", err)
	}
	if err := errors.Join(w.a.offer(devices), w.a.forget(w.t.Context())); err != nil {
		w.fail("%v", err)
	}
}

func (w *world) step() {
	steps := []struct {
		name   string
		weight int
		do     func()
	}{
		{"GPUs change", 2, func() { w.source.set(nil, w.randomDevices()...) }},
		{"rules change", 4, w.changeRules},
		{"the advertiser looks", 6, w.refresh},
		{"the advertiser looks while records cannot be read", 1, func() {
			w.recorder.err = errors.New("the disk does not answer")
			w.refresh()
			w.recorder.err = nil
		}},
		{"the kubelet hears", 6, w.hear},
		{"a pod comes", 12, w.admit},
		{"a container presents its token", 6, w.present},
		{"a pod goes", 4, w.remove},
		{"the kubelet writes its checkpoint", 3, w.checkpoint},
		{"the advertiser restarts", 1, w.startAdvertiser},
		{"the kubelet restarts", 1, func() {
			// Its checkpoint is never behind when it ends, and pods that are not from
			// files are unknown to it for a while.
			w.checkpoint()
			w.lists = map[string]map[string]bool{}
			w.ignorant = true
			w.a.streamsEnded.Add(1)
		}},
		{"the kubelet reaches the API server", 2, func() { w.ignorant = false }},
		{"the kubelet lists pods or does not", 1, func() {
			w.listing = nil
			if w.random.IntN(3) == 0 {
				w.listing = errors.New("busy")
			}
		}},
		{"time passes", 5, func() { w.pass(time.Duration(w.random.IntN(30)) * time.Second) }},
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

// changeRules has other rules in force, often those before the last.
func (w *world) changeRules() {
	before := w.rules
	w.rules = w.randomRules()
	if w.past != nil && w.random.IntN(2) == 0 {
		w.rules = w.past
	}
	w.past = before
	w.a.SetResources(w.rules)
	w.refresh()
}

// pass lets time pass. The kubelet writes its checkpoint within moments of what
// it allocates.
func (w *world) pass(d time.Duration) {
	w.checkpoint()
	w.now = w.now.Add(d)
}

func (w *world) hear() {
	for _, o := range w.a.offers {
		if w.random.IntN(2) == 0 {
			w.hearOf(o)
		}
	}
}

func (w *world) hearOf(o *offer) {
	p, _ := o.feed.current()
	list := map[string]bool{}
	for _, d := range received(w.t, p).GetDevices() {
		list[d.GetID()] = d.GetHealth() == v1beta1.Healthy
	}
	w.lists[o.resource] = list
}

func (w *world) held(resource string) map[string]bool {
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
func (w *world) admit() {
	if len(w.lists) == 0 || w.ignorant {
		return
	}
	resource := pick(w.random, slices.Sorted(maps.Keys(w.lists)))
	size := 1 + w.random.IntN(4)
	w.nextPod++
	pod := &standInPod{uid: fmt.Sprintf("%d", w.nextPod)}
	held := w.held(resource)
	var available []string
	for id, healthy := range w.lists[resource] {
		if healthy && !held[id] {
			available = append(available, id)
		}
	}
	slices.Sort(available)
	i := slices.IndexFunc(w.a.offers, func(o *offer) bool { return o.resource == resource })
	if len(available) < size || i < 0 {
		return
	}
	o := w.a.offers[i]
	s := w.a.endpoint(o).service(make(chan struct{}), newWatchers())
	ids := available[:size]
	// With NUMA hints it may not ask.
	if w.random.IntN(4) > 0 {
		answer, err := s.GetPreferredAllocation(w.t.Context(), &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{
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
	}
	for range 1 + w.random.IntN(2) {
		p, _ := o.feed.current()
		answer, err := s.Allocate(w.t.Context(), allocateRequest(ids))
		if err != nil {
			w.refused++
			break
		}
		w.checkTerms(p, ids)
		token := answer.GetContainerResponses()[0].GetEnvs()[allocation.EnvKey(resource)]
		pod.containers = append(pod.containers, standInContainer{resource: resource, ids: ids, token: allocation.Token(token)})
		w.log = append(w.log, fmt.Sprintf("  pod %s has %v of %s", pod.uid, ids, resource))
	}
	if len(pod.containers) > 0 {
		w.pods = append(w.pods, pod)
	}
}

func (w *world) checkTerms(p *pool, ids []string) {
	given := map[int]int{}
	drivers := map[driver]bool{}
	for _, id := range ids {
		i, _, err := p.find(id)
		if err != nil {
			w.fail("%s was allocated: %v", id, err)
		}
		given[i]++
		drivers[p.gpus[i].driver] = true
	}
	if len(drivers) > 1 && !p.terms.mixed {
		w.fail("%v mix drivers", ids)
	}
	if limit := p.terms.maxPerContainer; limit > 0 && len(ids) > limit {
		w.fail("%v are more than %d", ids, limit)
	}
	for i, n := range given {
		if p.wholeGPUs(len(ids)) && (n != p.gpus[i].replicas || w.isUsed(p.gpus[i].instanceID)) {
			w.fail("%v are not whole GPUs with nobody else on them", ids)
		}
	}
}

// isUsed tells whether a pod has a replica of a GPU, whatever it is called.
func (w *world) isUsed(instanceID string) bool {
	return slices.ContainsFunc(w.pods, func(p *standInPod) bool {
		return slices.ContainsFunc(p.containers, func(c standInContainer) bool {
			return slices.ContainsFunc(c.ids, func(id string) bool {
				of, _, ok := ParseReplicaID(id)
				return ok && foldID(of) == foldID(instanceID)
			})
		})
	})
}

func (w *world) present() {
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

func (w *world) remove() {
	if len(w.pods) == 0 {
		return
	}
	pod := pick(w.random, w.pods)
	w.log = append(w.log, "  pod "+pod.uid)
	w.pods = slices.DeleteFunc(w.pods, func(p *standInPod) bool { return p == pod })
}

func (w *world) checkpoint() {
	type entry struct {
		PodUID, ContainerName, ResourceName string
		DeviceIDs                           map[string][]string
		AllocResp                           []byte
	}
	var entries []entry
	for _, p := range w.pods {
		for i, c := range p.containers {
			entries = append(entries, entry{p.uid, fmt.Sprint(i), c.resource, map[string][]string{"-1": c.ids}, nil})
		}
	}
	data, err := json.Marshal(map[string]any{"Data": map[string]any{"PodDeviceEntries": entries, "RegisteredDevices": map[string][]string{}}, "Checksum": 1})
	if err != nil {
		w.fail("%v", err)
	}
	w.books = data
}

// check checks what must hold at every moment.
func (w *world) check() {
	usable := map[string]string{}
	byName := map[string]*pool{}
	for _, o := range w.a.offers {
		p, _ := o.feed.current()
		byName[o.resource] = p
		for _, g := range p.gpus {
			if g.heldAs != "" {
				w.blocked++
			}
			if !g.usable() {
				continue
			}
			if other, twice := usable[g.instanceID]; twice {
				w.fail("%s is offered as %s and as %s", g.instanceID, other, o.resource)
			}
			usable[g.instanceID] = o.resource
		}
	}
	replicaOf, gpuAs := map[string]string{}, map[string]string{}
	for _, pod := range w.pods {
		for _, c := range pod.containers {
			i := slices.IndexFunc(w.recorder.live, func(r allocation.LiveRecord) bool { return r.ID == c.token.ID() })
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
				p := byName[c.resource]
				if p == nil {
					w.fail("pod %s holds %s, which is not served", pod.uid, c.resource)
				}
				if i, ok := p.index[instance]; !ok || number >= p.gpus[i].listed {
					w.fail("pod %s holds %s, which is not listed", pod.uid, id)
				}
			}
		}
	}
}

// end lets everything go, and checks that what was held comes back.
func (w *world) end() {
	w.log = append(w.log, "the end")
	w.pods, w.listing, w.ignorant = nil, nil, false
	for range 5 {
		w.pass(21 * time.Second)
		w.refresh()
	}
	w.check()
	var names []string
	for _, o := range w.a.offers {
		names = append(names, o.resource)
	}
	wanted := resources.Names(w.rules)
	slices.Sort(names)
	slices.Sort(wanted)
	if !slices.Equal(names, wanted) {
		w.fail("%v are served at the end, want %v", names, wanted)
	}
	for _, d := range resources.Assign(w.source.devices, w.rules) {
		if d.Rule == nil || !d.Device.Health.OK() {
			continue
		}
		i := slices.IndexFunc(w.a.offers, func(o *offer) bool { return o.resource == d.Rule.Name })
		p, _ := w.a.offers[i].feed.current()
		if g := p.gpus[p.index[d.Device.InstanceID]]; !g.usable() || g.replicas != d.Rule.Replicas {
			w.fail("%s is not back: %+v", d.Device.InstanceID, g)
		}
	}
}

func (w *world) randomDevices() []discovery.Device {
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

func (w *world) randomRules() []config.Resource {
	names := []string{ResourceDisplay, ResourceCompute, "example.com/gpu", "example.com/other"}
	on := map[string]config.Resource{}
	for _, name := range names {
		on[name] = config.Resource{
			Name:              name,
			Policy:            pick(w.random, []config.AllocationPolicy{config.Distributed, config.Packed}),
			MaxPerContainer:   pick(w.random, []int{0, 0, 2}),
			ExclusiveRequests: w.random.IntN(3) == 0,
			MixedDrivers:      w.random.IntN(2) == 0,
		}
	}
	rules := make([]config.Resource, 0, 4)
	for range 1 + w.random.IntN(4) {
		rule := on[pick(w.random, names)]
		rule.Replicas = 1 + w.random.IntN(4)
		rule.Match = pick(w.random, []config.Match{{}, {Kind: "display"}, {Kind: "compute"}, {Descriptions: []string{"model 0"}}, {Descriptions: []string{"*1"}}})
		rules = append(rules, rule)
	}
	return rules
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }
