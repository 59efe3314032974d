// Package advertiser is the device plugin: it offers replicas of each GPU to
// the kubelet, and records what the kubelet hands out. It never answers with
// devices or mounts.
//
// One [Advertiser] serves both resources. A picture of what each offers (a
// pool) is made from the source's devices; the answers to the kubelet are pure
// functions of that picture, and the gRPC services are thin around them.
package advertiser

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/unixsocket"
)

// The extended resources.
const (
	// ResourceDisplay is for GPUs with the full WDDM driver model.
	ResourceDisplay = "directx.microsoft.com/display"
	// ResourceCompute is for compute-only devices (MCDM).
	ResourceCompute = "directx.microsoft.com/compute"
)

// Recorder keeps what was allocated. [allocation.Recorder] does it for good.
type Recorder interface {
	// Record writes an allocation down, durably by the time it returns.
	Record(ctx context.Context, resource string, replicas []allocation.Replica) (allocation.Token, error)
	// Discard takes back a record whose token was never handed out.
	Discard(token allocation.Token) error
	// Live returns the records that have not ended, oldest first.
	Live() ([]allocation.LiveRecord, error)
}

// Config is what an [Advertiser] needs.
type Config struct {
	// Source lists the GPUs.
	Source discovery.Source
	// Recorder records allocations.
	Recorder Recorder
	// Replicas is how many containers may share a GPU, from 1 to 1,024.
	Replicas int
	// KubeletDir is the kubelet's device plugin folder, on Linux
	// /var/lib/kubelet/device-plugins. It need not exist yet.
	KubeletDir string
	// Ready returns nil when whoever adjusts container specs is there to
	// honour the allocation of a container that starts, and otherwise an error
	// that says what is missing and what to do. It is called before each start
	// of a container that holds a replica, once for each resource, and by many
	// at once.
	Ready func(ctx context.Context, start Start) error
	// Pods returns the pods that the kubelet has, as "namespace/name". What a
	// record names counts as held until the record's pod was among them and is
	// no longer; without Pods, or while it fails, for good. It is called every
	// ten seconds as long as a container holds a replica, and never by two at
	// once.
	Pods func(ctx context.Context) (map[string]bool, error)
	// Log gets what happens.
	Log logrus.FieldLogger
	// FailOnInitError makes Run fail when the source has no GPU, or no answer,
	// at the start. Otherwise the advertiser waits for GPUs to come.
	FailOnInitError bool
}

// Start is the start of a container. The kubelet does not say which container it
// is, only what it holds.
type Start struct {
	Resource string
	// ReplicaIDs are the IDs of the replicas that were allocated to it.
	ReplicaIDs []string
}

// Advertiser is the device plugin for both resources.
type Advertiser struct {
	config Config
	timing timing
	now    func() time.Time
	random func() float64

	// offers is one for each resource. Only refresh changes what they offer.
	offers []*offer
	// changed tells that the source's devices have changed.
	changed chan struct{}
	trim    *trimmer
	pods    podWatch
	// streamsEnded counts the kubelet's streams that have ended.
	streamsEnded atomic.Int64
	// What is wrong with listing GPUs, with offering them, and with reading
	// records.
	listing, offering, reading trouble
	// passedOver has, by instance ID, why devices are not offered at all.
	passedOver map[string]string
}

// offer is what is served of one resource.
type offer struct {
	resource string
	kind     discovery.Kind
	// socket is the name of the resource's socket in the kubelet's folder.
	socket string
	feed   *feed
	log    logrus.FieldLogger
}

// New returns an advertiser, or an error that says what is wrong with config.
func New(config Config) (*Advertiser, error) {
	switch {
	case config.Source == nil, config.Recorder == nil, config.Ready == nil, config.Log == nil:
		return nil, errors.New("set up the advertiser: a source, a recorder, a readiness check and a log are needed")
	case config.KubeletDir == "":
		return nil, errors.New("set up the advertiser: the kubelet's device plugin folder is not named")
	}
	if err := CheckReplicas(config.Replicas); err != nil {
		return nil, fmt.Errorf("set up the advertiser: %w", err)
	}
	a := &Advertiser{
		config:  config,
		timing:  defaultTiming(),
		now:     time.Now,
		random:  rand.Float64,
		changed: make(chan struct{}, 1),
		trim:    newTrimmer(),
	}
	a.pods = podWatch{list: config.Pods, running: a.kubeletRun}
	for _, o := range []offer{
		{resource: ResourceDisplay, kind: discovery.KindDisplay, socket: "directx-display.sock"},
		{resource: ResourceCompute, kind: discovery.KindCompute, socket: "directx-compute.sock"},
	} {
		o.log = config.Log.WithField("resource", o.resource)
		a.offers = append(a.offers, &o)
	}
	return a, nil
}

// CheckReplicas returns an error that says what to choose when a GPU cannot be
// offered as n replicas.
func CheckReplicas(n int) error {
	if n < 1 || n > maxReplicas {
		return fmt.Errorf("%d replicas of each GPU are not possible, choose 1 to %d", n, maxReplicas)
	}
	return nil
}

// Run advertises until ctx ends; then it closes the kubelet's streams, removes
// its sockets and returns nil. It may be called once. Restarts of the kubelet
// do not end it; whatever else fails for good does, and is the error.
func (a *Advertiser) Run(ctx context.Context) error {
	if err := a.begin(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("advertise GPUs: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	folder := folderWatch{folder: a.config.KubeletDir, names: []string{kubeletSocket}, poll: a.timing.poll, log: a.config.Log}
	for _, o := range a.offers {
		e := a.endpoint(o)
		folder.names = append(folder.names, e.name)
		folder.nudges = append(folder.nudges, e.nudge)
		group.Go(func() error { return e.run(ctx) })
	}
	group.Go(func() error { folder.run(ctx); return nil })
	group.Go(func() error { a.trim.run(ctx, trimQuiet, freeMemory); return nil })
	group.Go(func() error { return a.watchSource(ctx) })
	group.Go(func() error { return a.keepFresh(ctx) })
	if err := group.Wait(); err != nil {
		return fmt.Errorf("advertise GPUs: %w", err)
	}
	return nil
}

func (a *Advertiser) endpoint(o *offer) *endpoint {
	return &endpoint{
		resource: o.resource,
		folder:   a.config.KubeletDir,
		name:     o.socket,
		timing:   a.timing,
		now:      a.now,
		random:   a.random,
		log:      o.log,
		nudge:    make(chan struct{}, 1),
		service:  func(stopping <-chan struct{}, w *watchers) *service { return a.service(o, stopping, w) },
	}
}

// begin makes the first pools, so that the kubelet's first list is whole.
func (a *Advertiser) begin(ctx context.Context) error {
	live, err := a.config.Recorder.Live()
	if err != nil {
		return fmt.Errorf("see which GPUs are held: %w", err)
	}
	for _, o := range a.offers {
		o.feed = newFeed(newPool(o.resource, a.config.Replicas, live, a.now()))
	}
	devices, err := a.config.Source.Devices(ctx)
	if err == nil {
		if a.config.FailOnInitError && !anyOffered(devices) {
			return errors.New("there is no GPU on this node, and an exit was asked for in that case")
		}
		return a.offer(devices)
	}
	if a.config.FailOnInitError {
		return fmt.Errorf("list GPUs: %w", err)
	}
	a.report(err)
	return nil
}

func (a *Advertiser) kubeletRun() (kubeletRun, error) {
	socket, err := unixsocket.Identify(filepath.Join(a.config.KubeletDir, kubeletSocket))
	return kubeletRun{socket: socket, streamsEnded: a.streamsEnded.Load()}, err
}

func anyOffered(devices []discovery.Device) bool {
	for _, d := range devices {
		if d.Kind() != discovery.KindNone {
			return true
		}
	}
	return false
}

func (a *Advertiser) watchSource(ctx context.Context) error {
	err := a.config.Source.Watch(ctx, func() { signal(a.changed) })
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = errors.New("it stopped telling")
	}
	return fmt.Errorf("watch for changes of the GPUs: %w", err)
}

// keepFresh refreshes at every change, and from time to time for what nobody
// tells of: that pods come and go. What it cannot do now it does later.
func (a *Advertiser) keepFresh(ctx context.Context) error {
	ticker := time.NewTicker(a.timing.recheck)
	defer ticker.Stop()
	// A change before the watch began told nobody.
	signal(a.changed)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.changed:
		case <-ticker.C:
		}
		devices, err := a.config.Source.Devices(ctx)
		if ctx.Err() != nil {
			return nil
		}
		a.report(err)
		if err != nil {
			continue
		}
		// What has changed is told before anybody is asked what may be
		// forgotten, for that can take a while.
		err = errors.Join(a.offer(devices), a.forget(ctx))
		switch {
		case !a.offering.changes(err):
		case err == nil:
			a.config.Log.Info("changes of the GPUs can be offered again")
		default:
			a.config.Log.WithError(err).Error("the GPUs that there are now cannot be offered; what was offered before still is")
		}
	}
}

// report logs that the devices cannot be listed, or can be again, once each.
func (a *Advertiser) report(err error) {
	switch {
	case !a.listing.changes(err):
	case err == nil:
		a.config.Log.Info("GPUs can be listed again")
	default:
		a.config.Log.WithError(err).Error("GPUs cannot be listed; what was known before is still offered")
	}
}

// offer publishes what devices make of the pools. A pool that the kubelet would
// not take stays as it was, and is an error.
func (a *Advertiser) offer(devices []discovery.Device) error {
	a.logPassedOver(devices)
	var failed error
	for _, o := range a.offers {
		var mine []discovery.Device
		for _, d := range devices {
			if d.Kind() == o.kind {
				mine = append(mine, d)
			}
		}
		before, _ := o.feed.current()
		failed = errors.Join(failed, o.publish(before, before.merge(mine, a.now())))
	}
	return failed
}

// forget takes out of the pools what nothing holds any more. It looks at pods
// also when there is nothing to forget: see [podWatch].
func (a *Advertiser) forget(ctx context.Context) error {
	live, err := a.config.Recorder.Live()
	if a.reading.changes(err) && err != nil {
		a.config.Log.WithError(err).Warn("cannot tell which GPUs are held, so none is forgotten")
	}
	if err != nil {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, a.timing.pods)
	defer cancel()
	gone, err := a.pods.gone(asking, live)
	if err != nil {
		a.config.Log.WithError(err).Debug("cannot tell which pods are gone, so all replicas that are recorded count as held")
	}
	var failed error
	for _, o := range a.offers {
		before, _ := o.feed.current()
		if before.leftovers() {
			after := before.prune(heldReplicas(live, o.resource, gone), a.now(), a.timing.patience)
			failed = errors.Join(failed, o.publish(before, after))
		}
	}
	return failed
}

// logPassedOver logs, once each, the devices that no resource has a place for.
func (a *Advertiser) logPassedOver(devices []discovery.Device) {
	before := a.passedOver
	a.passedOver = map[string]string{}
	for _, d := range devices {
		reason, level := "", logrus.WarnLevel
		switch err := offerable(d); {
		// Every Windows has such a device; nothing is wrong with it.
		case d.Software:
			reason, level = "it is a software renderer", logrus.InfoLevel
		case err != nil:
			reason = err.Error()
		case d.Kind() == discovery.KindNone:
			reason, level = "it supports neither display nor compute", logrus.InfoLevel
		default:
			continue
		}
		a.passedOver[d.InstanceID] = reason
		if before[d.InstanceID] != reason {
			a.config.Log.WithFields(logrus.Fields{"gpu": d.Name(), "instanceID": d.InstanceID, "reason": reason}).Log(level, "device is not offered")
		}
	}
}

// publish makes after what o offers, and logs what is new about it.
func (o *offer) publish(before, after *pool) error {
	if _, err := after.size(); err != nil {
		return err
	}
	o.feed.publish(after)
	for _, g := range after.gpus {
		log := o.log.WithFields(logrus.Fields{"gpu": g.name, "instanceID": g.instanceID})
		i, known := before.index[g.instanceID]
		switch {
		case known && before.gpus[i].fault == g.fault:
		case g.usable():
			log.WithField("replicas", after.replicas).Info("GPU is offered")
		default:
			log.WithField("fault", g.fault).Warn("GPU cannot be allocated")
		}
	}
	for _, g := range before.gpus {
		if _, known := after.index[g.instanceID]; !known {
			o.log.WithFields(logrus.Fields{"gpu": g.name, "instanceID": g.instanceID}).Info("GPU is forgotten, for nothing holds it any more")
		}
	}
	return nil
}
