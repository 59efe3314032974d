// Package advertiser is the Kubernetes device plugin: it offers replicas of each GPU
// to the kubelet and records what the kubelet allocates. It has no knowledge of
// devices and mounts; answers that contain any are made by [Config.Inject].
//
// One [Advertiser] serves all resources. What a resource offers is an immutable pool,
// made of the source's devices, the rules and the live records. The gRPC services are
// thin layers over pure functions of a pool.
package advertiser

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"directx-nri/advertiser/resources"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/filewatch"
	"directx-nri/internal/localgrpc"
	"directx-nri/internal/policy"
)

// The extended resources.
const (
	// ResourceDisplay is for GPUs with the full WDDM driver model.
	ResourceDisplay = "directx.microsoft.com/display"
	// ResourceCompute is for compute-only devices (MCDM).
	ResourceCompute = "directx.microsoft.com/compute"
)

// Recorder keeps allocation records. [allocation.Recorder] implements it.
type Recorder interface {
	// Record writes a record. It is durable when Record returns.
	Record(ctx context.Context, resource string, replicas []allocation.Replica) (allocation.Token, error)
	// RecordInjected writes a record of an allocation without a token.
	RecordInjected(ctx context.Context, resource string, replicas []allocation.Replica) (allocation.Token, error)
	// Discard removes a record whose token no container has.
	Discard(token allocation.Token) error
	// Attribute binds a record of an allocation without a token.
	Attribute(id allocation.ID, namespace, pod, container string) error
	// End removes a record whose pod no longer exists.
	End(id allocation.ID) error
	// Live returns the records that have not ended, oldest first.
	Live() []allocation.LiveRecord
}

// Observer counts what the advertiser does. Its methods are called concurrently and
// do not block. A nil *metrics.Metrics is an observer that counts nothing.
type Observer interface {
	// Allocated counts an allocation to one container.
	Allocated(resource string)
	// AllocationFailed counts a request that was refused; reason is one of a few words.
	AllocationFailed(resource, reason string)
	// StartChecked records how long the check before a container's start took, and
	// whether the container may start.
	StartChecked(resource string, took time.Duration, passed bool)
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
	// Ready returns an error, with cause and remedy, if the component that adjusts
	// containers cannot do so now. It is called concurrently, once for each resource
	// of a container, before each start of the container.
	Ready func(ctx context.Context, start Start) error
	// Pods ends the records of pods that no longer exist; nil ends none.
	Pods *PodTracker
	// Inject, if set, makes the answers to the kubelet. Containers get no token then,
	// and Ready may be nil.
	Inject Inject
	// Windows reports whether the node's containers run on Windows, which determines
	// the form of the interlock.
	Windows bool
	// Observer counts what happens.
	Observer Observer
	Log      logrus.FieldLogger
	// FailOnInitError makes Run fail if the source has no GPU at the start.
	FailOnInitError bool
}

// Advertiser is the device plugin for all resources, for one run.
type Advertiser struct {
	config Config
	timing timing
	now    func() time.Time
	status *statusTracker
	// changed receives a value when the source's devices have changed, allocated
	// after an allocation.
	changed, allocated chan struct{}

	// What follows belongs to the goroutine of Run, and later of keepFresh.

	pools map[string]*broadcaster // by resource
	// placed is the resource of each GPU in this run, by normalized instance ID.
	placed map[string]string
	// notOffered has the reasons why devices are not offered, by instance ID.
	notOffered                      map[string]string
	discovering, offering, tracking errorState
}

// New returns an advertiser.
func New(config Config) (*Advertiser, error) {
	if len(config.Resources) == 0 {
		return nil, errors.New("create the advertiser: there is no resource")
	}
	for _, rule := range config.Resources {
		if rule.Replicas < 1 || rule.Replicas > policy.MaxReplicas {
			return nil, fmt.Errorf("create the advertiser: %s: %d replicas, must be 1 to %d", rule.Name, rule.Replicas, policy.MaxReplicas)
		}
	}
	return &Advertiser{
		config: config, timing: defaultTiming(), now: time.Now, status: newStatusTracker(),
		changed: make(chan struct{}, 1), allocated: make(chan struct{}, 1),
		pools: map[string]*broadcaster{}, placed: map[string]string{},
	}, nil
}

// ErrRestart is returned by [Advertiser.Run] when a new run would offer GPUs under
// other names.
var ErrRestart = errors.New("GPUs can be offered under other resource names")

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
	err := a.run(ctx)
	switch {
	case ctx.Err() != nil, err == nil:
		return nil
	case errors.Is(err, ErrRestart):
		return ErrRestart
	}
	return fmt.Errorf("advertise GPUs: %w", err)
}

func (a *Advertiser) run(ctx context.Context) error {
	a.status.setLook(a.now())
	endpoints, err := a.start(ctx)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, e := range endpoints {
		group.Go(func() error { return e.run(ctx) })
	}
	group.Go(func() error { a.watchDirectory(ctx, endpoints); return nil })
	group.Go(func() error { return a.watchSource(ctx) })
	group.Go(func() error { return a.keepFresh(ctx) })
	return group.Wait()
}

// start creates the first pools, so that the kubelet's first lists are complete, and
// returns their endpoints.
func (a *Advertiser) start(ctx context.Context) ([]*endpoint, error) {
	live := a.config.Recorder.Live()
	names := resources.Names(a.config.Resources)
	for _, record := range live {
		if !slices.Contains(names, record.Resource) {
			names = append(names, record.Resource)
		}
	}
	var endpoints []*endpoint
	for _, name := range names {
		p := &pool{resource: name, terms: termsOf(name, a.config.Resources)}
		a.pools[name] = newBroadcaster(p.next(nil, holdings(live, name), a.now(), a.timing.patience))
		a.status.addResource(name, a.pools[name])
		endpoints = append(endpoints, a.endpoint(name))
	}
	devices, err := a.config.Source.Devices(ctx)
	if err == nil && a.config.FailOnInitError && !slices.ContainsFunc(resources.Assign(devices, a.config.Resources), func(d resources.Assigned) bool { return d.Rule != nil }) {
		return nil, errors.New("there is no GPU for any resource on this node, and failOnInitError is set")
	}
	a.reportDiscovery(err)
	if err != nil {
		if a.config.FailOnInitError {
			return nil, fmt.Errorf("list GPUs: %w", err)
		}
		return endpoints, nil
	}
	return endpoints, a.offer(devices, live)
}

func (a *Advertiser) endpoint(resource string) *endpoint {
	log := a.config.Log.WithField("resource", resource)
	return &endpoint{
		resource: resource, directory: a.config.KubeletDir, name: SocketName(resource),
		options: a.config.options(), timing: a.timing, now: a.now, log: log,
		nudge: make(chan struct{}, 1),
		service: func(stopping <-chan struct{}, w *watchers) *service {
			return &service{
				resource: resource, pools: a.pools[resource], config: &a.config, status: a.status, log: log,
				allocated: func() { signal(a.allocated) }, stopping: stopping, watchers: w,
			}
		},
	}
}

// watchDirectory notifies endpoints of changes to the sockets in the kubelet's
// directory. The kubelet also has files there that it writes at every allocation.
func (a *Advertiser) watchDirectory(ctx context.Context, endpoints []*endpoint) {
	o := filewatch.Options{
		Files: []string{filepath.Join(a.config.KubeletDir, "*.sock")}, Interval: a.timing.poll,
		Failed: func(err error) {
			a.config.Log.WithError(err).Warn("Cannot watch the kubelet's device plugin directory, checking it periodically; is fs.inotify.max_user_instances too small?")
		},
	}
	filewatch.Watch(ctx, o, func() {
		for _, e := range endpoints {
			signal(e.nudge)
		}
	})
}

func (a *Advertiser) watchSource(ctx context.Context) error {
	err := a.config.Source.Watch(ctx, func() { signal(a.changed) })
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = errors.New("watch ended unexpectedly")
	}
	return fmt.Errorf("watch the GPUs: %w", err)
}

// keepFresh offers what there is at every change, and periodically for changes that
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
		a.status.setLook(a.now())
		if err := a.look(ctx); err != nil {
			return err
		}
	}
}

// look reads devices, records and pods, and offers what there is.
func (a *Advertiser) look(ctx context.Context) error {
	devices, err := a.config.Source.Devices(ctx)
	if ctx.Err() != nil {
		return nil
	}
	a.reportDiscovery(err)
	live := a.config.Recorder.Live()
	if err == nil {
		if err := a.offer(devices, live); err != nil {
			return err
		}
	}
	err = a.trackPods(ctx, live)
	if a.tracking.changed(err) && err != nil && ctx.Err() == nil {
		a.config.Log.WithError(err).Warn("Cannot find out which pods hold GPUs; their allocations are kept")
	}
	return nil
}

// trackPods ends the records of pods that no longer exist, and binds those without a
// token to the containers that the kubelet names.
func (a *Advertiser) trackPods(ctx context.Context, live []allocation.LiveRecord) error {
	if a.config.Pods == nil || len(live) == 0 || !a.status.watched() {
		return nil
	}
	containers, over, err := a.config.Pods.update(ctx, live, a.kubelet)
	for _, id := range over {
		a.config.Log.WithField("allocation", id).Info("Allocation ended: its pod no longer exists")
		err = errors.Join(err, a.config.Recorder.End(id))
		signal(a.changed)
	}
	for _, record := range live {
		if !record.Injected || record.Holder != nil || slices.Contains(over, record.ID) {
			continue
		}
		if c, ok := soleHolder(containers, record); ok {
			a.config.Log.WithFields(logrus.Fields{"allocation": record.ID, "pod": c.Pod.String(), "container": c.Container}).Info("Found the container of an allocation")
			err = errors.Join(err, a.config.Recorder.Attribute(record.ID, c.Pod.Namespace, c.Pod.Name, c.Container))
		}
	}
	return err
}

// kubelet identifies the process of the kubelet that watches our lists. Without a
// stream it may already be another one: a kubelet that starts lists pods before it
// replaces the socket of the last one.
func (a *Advertiser) kubelet() (localgrpc.Identity, error) {
	if !a.status.watched() {
		return localgrpc.Identity{}, errors.New("the kubelet does not watch any list")
	}
	return localgrpc.Identify(filepath.Join(a.config.KubeletDir, kubeletSocket))
}

// reportDiscovery logs the beginning and the end of an error of discovery.
func (a *Advertiser) reportDiscovery(err error) {
	switch {
	case !a.discovering.changed(err):
	case err == nil:
		a.config.Log.Info("GPUs can be listed again")
	default:
		a.config.Log.WithError(err).Error("Cannot list GPUs; the last known ones are offered")
	}
}

// offer publishes the pools for devices and live records. It returns [ErrRestart] if a
// GPU's resource is not that of this run. A pool whose list is too large for the
// kubelet stays as it was.
func (a *Advertiser) offer(devices []discovery.Device, live []allocation.LiveRecord) error {
	assigned := resources.Assign(devices, a.config.Resources)
	a.logNotOffered(assigned)
	held := map[string]map[string]holding{}
	for name := range a.pools {
		held[name] = holdings(live, name)
	}
	shares := map[string][]share{}
	for _, d := range assigned {
		if d.Rule == nil || checkOfferable(d.Device) != nil {
			continue
		}
		id := normalizeID(d.Device.InstanceID)
		name, replicas := d.Rule.Name, d.Rule.Replicas
		holder, isHeld := heldAs(live, id, name)
		if isHeld {
			name = holder.Resource
			replicas = held[name][id].replicas
		}
		switch placed, ok := a.placed[id]; {
		case ok && placed != name:
			a.config.Log.WithFields(logrus.Fields{"gpu": d.Device.Name(), "from": placed, "to": name}).Info("Restarting to offer the GPU under another resource name")
			return ErrRestart
		case !ok && isHeld:
			a.config.Log.WithFields(logrus.Fields{"gpu": d.Device.Name(), "resource": name, "newResource": d.Rule.Name, "allocation": holder.ID, "holder": holder.Holder}).
				Warn("The GPU keeps its old resource name until the allocation ends")
		}
		a.placed[id] = name
		shares[name] = append(shares[name], share{device: d.Device, replicas: replicas})
	}
	var failed error
	for _, name := range slices.Sorted(maps.Keys(a.pools)) {
		before, _ := a.pools[name].current()
		after := before.next(shares[name], held[name], a.now(), a.timing.patience)
		if len(after.gpus) == 0 && !slices.Contains(resources.Names(a.config.Resources), name) {
			a.config.Log.WithField("resource", name).Info("Restarting without the resource: it has no rule, and nothing is allocated under its name")
			return ErrRestart
		}
		if !after.sameList(before) {
			if err := after.checkSize(); err != nil {
				failed = errors.Join(failed, err)
				continue
			}
		}
		a.logChanges(before, after)
		a.pools[name].publish(after)
	}
	a.status.setDevices(devices, failed)
	switch {
	case !a.offering.changed(failed):
	case failed == nil:
		a.config.Log.Info("All GPUs are offered again")
	default:
		a.config.Log.WithError(failed).Error("Cannot offer the GPUs of this node")
	}
	return nil
}

// heldAs returns the oldest live record of a GPU; ok is false if there is none, or one
// is under the name of the GPU's rule.
func heldAs(live []allocation.LiveRecord, normalizedID, rule string) (oldest allocation.LiveRecord, ok bool) {
	for _, record := range live {
		if !slices.ContainsFunc(record.Replicas, func(r allocation.Replica) bool { return normalizeID(r.InstanceID) == normalizedID }) {
			continue
		}
		if record.Resource == rule {
			return allocation.LiveRecord{}, false
		}
		if !ok {
			oldest, ok = record, true
		}
	}
	return oldest, ok
}

// logChanges logs what is new in the pool of a resource.
func (a *Advertiser) logChanges(before, after *pool) {
	log := func(g gpu) *logrus.Entry {
		return a.config.Log.WithFields(logrus.Fields{"resource": after.resource, "gpu": g.name, "instanceID": g.instanceID})
	}
	for _, g := range after.gpus {
		i, known := before.index[g.instanceID]
		switch {
		case known && before.gpus[i].fault == g.fault && (!g.usable() || before.gpus[i].replicas == g.replicas):
		case g.usable():
			log(g).WithField("replicas", g.replicas).Info("GPU is offered")
		default:
			log(g).WithField("fault", g.fault).Warn("GPU cannot be allocated")
		}
	}
	for _, g := range before.gpus {
		if _, known := after.index[g.instanceID]; !known {
			log(g).Info("GPU is removed from the list: nothing holds it")
		}
	}
}

// logNotOffered logs the devices that no resource has, once each. A software renderer
// or a device without a rule is not a problem.
func (a *Advertiser) logNotOffered(devices []resources.Assigned) {
	before := a.notOffered
	a.notOffered = map[string]string{}
	for _, d := range devices {
		reason, level := d.Reason, logrus.InfoLevel
		if err := checkOfferable(d.Device); err != nil && !d.Device.Software {
			reason, level = err.Error(), logrus.WarnLevel
		}
		if reason == "" {
			continue
		}
		id := d.Device.InstanceID
		a.notOffered[id] = reason
		if before[id] != reason {
			a.config.Log.WithFields(logrus.Fields{"gpu": d.Device.Name(), "instanceID": id, "reason": reason}).Log(level, "Device is not offered")
		}
	}
}
