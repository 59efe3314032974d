// Package advertiser is the Kubernetes device plugin: it advertises replicas of each GPU
// to the kubelet and records what the kubelet allocates. It has no knowledge of
// devices and mounts; answers that contain any are made by [Config.Inject].
//
// One [Advertiser] serves all resources. What a resource advertises is an immutable pool,
// made of the source's devices, the rules and the live records. The gRPC services are
// thin layers over pure functions of a pool.
package advertiser

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// Recorder keeps allocation records. [allocation.Recorder] implements it.
type Recorder interface {
	// Record writes a record, which is durable when Record returns. No container has the
	// token of an injected one.
	Record(ctx context.Context, resource string, replicas []allocation.Replica, injected bool) (allocation.Token, error)
	// Attribute binds an injected record.
	Attribute(id allocation.ID, namespace, pod, container string) error
	// End removes a record whose token no container will present any more.
	End(id allocation.ID) error
	// Live returns the records that have not ended, oldest first.
	Live() []allocation.Entry
}

// Config is the configuration of an [Advertiser].
type Config struct {
	// Source lists the GPUs.
	Source discovery.Source
	// Recorder keeps the allocation records.
	Recorder Recorder
	// Resources are the rules that assign GPUs to resources. There is at least one.
	Resources []policy.Resource
	// KubeletDir is the kubelet's device plugin directory, on Linux
	// /var/lib/kubelet/device-plugins. It need not exist yet.
	KubeletDir string
	// AtCreation reports that the kubelet allocates when it creates a container, as on
	// Windows, and not when it admits a pod: admission has a fake topology manager
	// there (pkg/kubelet/cm/container_manager_windows.go, v1.34 and v1.37). An error of
	// Allocate is retried then.
	AtCreation bool
	// Ready returns an error, with cause and remedy, if the component that adjusts
	// containers cannot do so now. It is called concurrently, before each start of a
	// container, once for each resource with the replicas that the container holds. With
	// AtCreation it is called by Allocate instead, during which another allocation can
	// crash the kubelet (kubernetes#136021): it must return at once.
	Ready func(ctx context.Context, resource string, replicaIDs []string) error
	// Pods finds the containers that hold replicas, and the pods that no longer exist.
	Pods *PodTracker
	// Inject, if set, makes the answers to the kubelet. Containers get no token then.
	Inject Inject
	// NodeOS is the operating system of the node's containers, "windows" or "linux". It
	// determines which GPUs they can have, and the form of the interlock.
	NodeOS string
	// Metrics counts what happens.
	Metrics *metrics.Metrics
	Log     logrus.FieldLogger
	// FailOnInitError makes Run fail if the source has no GPU at the start.
	FailOnInitError bool
}

// timing are the durations that the package waits for. Tests shorten them.
type timing struct {
	// poll is the interval of checks for changes without an event, and of attempts;
	// unwatched is that of checks for the kubelet's socket while the kubelet does not
	// watch the list.
	poll, unwatched time.Duration
	// recheck is the interval at which devices, records and pods are read again,
	// afterAllocate the time until then after an allocation.
	recheck, afterAllocate time.Duration
	// removalDelay is how long a replica must be free before it leaves the list.
	removalDelay time.Duration
	// watch is how long after a registration the kubelet may take to call ListAndWatch.
	watch time.Duration
	// stop bounds the wait for calls in flight when a server stops.
	stop time.Duration
	// quiet is how long no other allocation may begin before and after one
	// ([server.soleAllocation]).
	quiet time.Duration
}

// Advertiser is the device plugin for all resources, for one run.
type Advertiser struct {
	config Config
	timing timing
	now    func() time.Time
	// changed receives a value when the source's devices have changed, allocated
	// after an allocation.
	changed, allocated chan struct{}
	// disturbed is when an allocation last began or failed, nil if there was none.
	// allocating is the number of those that have not ended.
	disturbed  atomic.Pointer[time.Time]
	allocating atomic.Int32

	mu sync.Mutex
	// servers by resource are constant after start.
	servers map[string]*server
	// devices are those of the node, advertised or not. They were listed at lastLook.
	devices  []discovery.Device
	lastLook time.Time
	// tooLarge is why not all devices can be advertised.
	tooLarge error

	// What follows belongs to the goroutine of Run, and later of keepFresh.

	// placed is the resource of each GPU in this run, by normalized instance ID.
	placed map[string]string
	// unadvertised has the reasons why devices are not advertised, by instance ID.
	unadvertised                      map[string]string
	discovering, publishing, tracking errorState
}

// New returns an advertiser.
func New(config Config) *Advertiser {
	return &Advertiser{
		config: config, now: time.Now,
		timing: timing{
			poll: time.Second, unwatched: 20 * time.Millisecond, recheck: 10 * time.Second, afterAllocate: time.Second,
			removalDelay: 20 * time.Second, watch: 10 * time.Second, stop: 2 * time.Second,
			quiet: 100 * time.Millisecond,
		},
		changed: make(chan struct{}, 1), allocated: make(chan struct{}, 1),
		servers: map[string]*server{}, placed: map[string]string{},
	}
}

// ErrRestart is returned by [Advertiser.Run] when a new run would advertise GPUs under
// other names.
var ErrRestart = errors.New("GPUs can be advertised under other resource names")

// Run advertises until ctx ends; then it closes the kubelet's streams, removes its
// sockets and returns nil. Restarts of the kubelet do not end it. It may be called
// once.
//
// A GPU has one resource name for a whole run. It is that of its rule, unless live
// records hold the GPU under other names only: then it is the oldest of those, and the
// GPU has no more replicas than are held. A record is live from before Allocate
// returns until its pod no longer exists ([PodTracker]) or another pod has bound a
// newer record of one of its replicas, so it also covers init containers and slow
// image pulls. When the name would be another one, Run returns [ErrRestart]; by then
// no call of Allocate is in flight, and the records are complete for the next run.
func (a *Advertiser) Run(ctx context.Context) error {
	err := a.start(ctx)
	if err == nil {
		group, ctx := errgroup.WithContext(ctx)
		for _, s := range a.servers {
			group.Go(func() error { return s.run(ctx) })
		}
		group.Go(func() error {
			err := a.config.Source.Watch(ctx, func() { signal(a.changed) })
			return fmt.Errorf("watch the GPUs: %w", cmp.Or(err, errors.New("watch ended unexpectedly")))
		})
		group.Go(func() error { return a.keepFresh(ctx) })
		err = group.Wait()
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("advertise GPUs: %w", err)
}

// start creates the first pools, so that the kubelet's first lists are complete.
func (a *Advertiser) start(ctx context.Context) error {
	live := a.config.Recorder.Live()
	rules := map[string]policy.Resource{} // the first one of each name
	for _, record := range live {
		rules[record.Resource] = policy.Resource{}
	}
	for _, rule := range slices.Backward(a.config.Resources) {
		rules[rule.Name] = rule
	}
	a.mu.Lock()
	for name, rule := range rules {
		p := &pool{resource: name, rule: rule}
		a.servers[name] = a.newServer(p.next(nil, holdings(live, name), a.now(), a.timing.removalDelay))
	}
	a.mu.Unlock()
	devices, err := a.listDevices(ctx)
	found := slices.ContainsFunc(a.assign(devices), func(d resources.Assigned) bool { return d.Rule != nil })
	if a.config.FailOnInitError && !found {
		return fmt.Errorf("%w, and failOnInitError is set", cmp.Or(err, errors.New("there is no GPU for any resource on this node")))
	}
	if err != nil {
		return nil //nolint:nilerr // There may be GPUs later.
	}
	return a.publishPools(devices, live)
}

func (a *Advertiser) listDevices(ctx context.Context) ([]discovery.Device, error) {
	a.mu.Lock()
	a.lastLook = a.now()
	a.mu.Unlock()
	devices, err := a.config.Source.Devices(ctx)
	if ctx.Err() == nil {
		a.discovering.log(a.config.Log, err, "Cannot list GPUs; the last known ones stay advertised", "GPUs can be listed again")
	}
	return devices, err
}

// keepFresh publishes the pools at every change, and periodically for changes that
// have no event: those of pods and records. It returns [ErrRestart], or nil when ctx
// ends; other errors are retried.
func (a *Advertiser) keepFresh(ctx context.Context) error {
	timer := time.NewTimer(0) // There may have been changes before the watch began.
	defer timer.Stop()
	soon := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.allocated:
			// A pod must be seen while it exists.
			if !soon {
				soon = true
				timer.Reset(a.timing.afterAllocate)
			}
			continue
		case <-a.changed:
		case <-timer.C:
		}
		soon = false
		timer.Reset(a.timing.recheck)
		if err := a.refresh(ctx); err != nil {
			return err
		}
	}
}

// refresh reads devices, records and pods, and publishes the pools.
func (a *Advertiser) refresh(ctx context.Context) error {
	devices, err := a.listDevices(ctx)
	if ctx.Err() != nil {
		return nil
	}
	live := a.config.Recorder.Live()
	if err == nil {
		if err := a.publishPools(devices, live); err != nil {
			return err
		}
	}
	err = a.trackPods(ctx, live)
	if ctx.Err() == nil {
		a.tracking.log(a.config.Log, err, "Cannot find out which pods hold GPUs; their allocations are kept", "The pods that hold GPUs are known again")
	}
	return nil
}

// trackPods ends the records of pods that no longer exist, and binds those without a
// token to the containers that the kubelet names.
func (a *Advertiser) trackPods(ctx context.Context, live []allocation.Entry) error {
	if len(live) == 0 || len(a.unwatched()) == len(a.servers) || a.Allocating() {
		return nil
	}
	containers, ended, err := a.config.Pods.update(ctx, live, a.kubelet)
	for _, id := range ended {
		if failed := a.config.Recorder.End(id); failed != nil {
			err = errors.Join(err, failed) // The next recheck tries again.
			continue
		}
		a.config.Log.WithField("allocation", id).Info("Allocation ended: its pod no longer exists")
		signal(a.changed)
	}
	for _, record := range live {
		c, ok := soleHolder(containers, record)
		if !ok || !record.Injected || record.Holder != nil || slices.Contains(ended, record.ID) {
			continue
		}
		a.config.Log.WithFields(logrus.Fields{"allocation": record.ID, "pod": c.Pod.String(), "container": c.Container}).Info("Found the container of an allocation")
		err = errors.Join(err, a.config.Recorder.Attribute(record.ID, c.Pod.Namespace, c.Pod.Name, c.Container))
	}
	return err
}

// kubelet identifies the process of the kubelet that watches our lists. Without a
// stream it may already be another one: a kubelet that starts lists pods before it
// replaces the socket of the last one.
func (a *Advertiser) kubelet() (localgrpc.Identity, error) {
	if len(a.unwatched()) == len(a.servers) {
		return localgrpc.Identity{}, errors.New("the kubelet does not watch any list")
	}
	return localgrpc.Identify(filepath.Join(a.config.KubeletDir, kubeletSocket))
}

// publishPools publishes the pools for devices and live records. It returns [ErrRestart] if a
// GPU's resource is not that of this run. A pool whose list is too large for the
// kubelet stays as it was.
func (a *Advertiser) publishPools(devices []discovery.Device, live []allocation.Entry) error {
	assigned := a.assign(devices)
	a.logUnadvertised(assigned)
	byResource := map[string][]gpu{}
	for _, d := range assigned {
		if d.Rule == nil {
			continue
		}
		id := discovery.NormalizeID(d.Device.InstanceID)
		name, replicas := d.Rule.Name, d.Rule.Replicas
		holder, isHeld := resourceInUse(live, id, name)
		if isHeld {
			name = holder.Resource
			replicas = holdings(live, name)[id].replicas
		}
		switch placed, ok := a.placed[id]; {
		case ok && placed != name:
			a.config.Log.WithFields(logrus.Fields{"gpu": d.Device.Name(), "from": placed, "to": name}).Info("Restarting to advertise the GPU under another resource name")
			return ErrRestart
		case !ok && isHeld:
			a.config.Log.WithFields(logrus.Fields{"gpu": d.Device.Name(), "resource": name, "newResource": d.Rule.Name, "allocation": holder.ID, "holder": holder.Holder}).
				Warn("The GPU keeps its old resource name until the allocation ends")
		}
		a.placed[id] = name
		byResource[name] = append(byResource[name], newGPU(d.Device, replicas))
	}
	var tooLarge error
	for _, name := range slices.Sorted(maps.Keys(a.servers)) {
		before, _ := a.servers[name].current()
		after := before.next(byResource[name], holdings(live, name), a.now(), a.timing.removalDelay)
		if len(after.gpus) == 0 && after.rule.Name == "" {
			a.config.Log.WithField("resource", name).Info("Restarting without the resource: it has no rule, and nothing is allocated under its name")
			return ErrRestart
		}
		if !after.sameList(before) {
			if err := after.checkSize(); err != nil {
				tooLarge = errors.Join(tooLarge, err)
				continue
			}
		}
		a.logChanges(before, after)
		a.servers[name].publish(after)
	}
	a.mu.Lock()
	a.devices, a.tooLarge = devices, tooLarge
	a.mu.Unlock()
	a.publishing.log(a.config.Log, tooLarge, "Cannot advertise the GPUs of this node", "All GPUs are advertised again")
	return nil
}

// assign returns the devices with their rules. If answers to the kubelet have GPUs and it
// allocates at creation, only the first resource that has GPUs is advertised: of a
// container with GPUs of two, the kubelet would drop some in silence, and no call of it
// shows that a container has both.
func (a *Advertiser) assign(devices []discovery.Device) []resources.Assigned {
	all := resources.Assign(devices, a.config.Resources, a.config.NodeOS)
	if a.config.Inject == nil || !a.config.AtCreation {
		return all
	}
	first := slices.IndexFunc(a.config.Resources, func(rule policy.Resource) bool {
		return slices.ContainsFunc(all, func(d resources.Assigned) bool { return d.Rule != nil && d.Rule.Name == rule.Name })
	})
	for i, d := range all {
		if d.Rule != nil && d.Rule.Name != a.config.Resources[first].Name {
			all[i].Rule = nil
			all[i].Reason = fmt.Sprintf("with injection: kubelet, a Windows node can have GPUs of one resource, which is %s here", a.config.Resources[first].Name)
		}
	}
	return all
}

// resourceInUse returns the oldest live record of a GPU; ok is false if there is none, or one
// is under the name of the GPU's rule.
func resourceInUse(live []allocation.Entry, instanceID, rule string) (oldest allocation.Entry, ok bool) {
	for _, record := range live {
		if !slices.ContainsFunc(record.Replicas, func(r allocation.Replica) bool { return strings.EqualFold(r.InstanceID, instanceID) }) {
			continue
		}
		if record.Resource == rule {
			return allocation.Entry{}, false
		}
		if !ok {
			oldest, ok = record, true
		}
	}
	return oldest, ok
}

// logChanges logs what is new in the pool of a resource.
func (a *Advertiser) logChanges(before, after *pool) {
	for _, g := range after.gpus {
		i, known := before.index[g.instanceID]
		if known && before.gpus[i].fault == g.fault && (!g.usable() || before.gpus[i].replicas == g.replicas) {
			continue
		}
		if g.usable() {
			a.logGPU(after, g).WithField("replicas", g.replicas).Info("GPU is advertised")
		} else {
			a.logGPU(after, g).WithField("fault", g.fault).Warn("GPU cannot be allocated")
		}
	}
	for _, g := range before.gpus {
		if _, known := after.index[g.instanceID]; !known {
			a.logGPU(after, g).Info("GPU is removed from the list: nothing holds it")
		}
	}
}

func (a *Advertiser) logGPU(p *pool, g gpu) *logrus.Entry {
	return a.config.Log.WithFields(logrus.Fields{"resource": p.resource, "gpu": g.name, "instanceID": g.instanceID})
}

// logUnadvertised logs the devices that no resource has, once each.
func (a *Advertiser) logUnadvertised(devices []resources.Assigned) {
	before := a.unadvertised
	a.unadvertised = map[string]string{}
	for _, d := range devices {
		id := d.Device.InstanceID
		if a.unadvertised[id] = d.Reason; d.Reason != "" && before[id] != d.Reason {
			a.config.Log.WithFields(logrus.Fields{"gpu": d.Device.Name(), "instanceID": id, "reason": d.Reason}).Info("Device is not advertised")
		}
	}
}
