// Package advertiser is the device plugin: it offers replicas of each GPU to
// the kubelet, and records what the kubelet hands out. It knows nothing of devices
// or mounts; where its answers have any, [Config.Inject] makes them.
//
// One [Advertiser] serves all resources that the configuration's rules name. A
// picture of what each offers (a pool) is made from the source's devices; the
// answers to the kubelet are pure functions of that picture, and the gRPC
// services are thin around them.
package advertiser

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"directx-nri/advertiser/resources"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/config"
	"directx-nri/internal/localgrpc"
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
	// Resources are the rules to begin with, see [Advertiser.SetResources].
	Resources []config.Resource
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
	// Inject, where it is set, makes the answers to the kubelet, and no container
	// is given a token. The recorder must be one for such allocations, as
	// [allocation.Injected] is; and Ready need not be there.
	Inject Inject
	// Windows reports that the node's containers run on Windows, which decides on
	// the form of the interlock.
	Windows bool
	// Observer is told what happens, for metrics. nil when nobody wants to know.
	Observer Observer
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

// Advertiser is the device plugin for all resources.
type Advertiser struct {
	config Config
	timing timing
	now    func() time.Time
	random func() float64
	// books reads what the kubelet has allocated.
	books func() (books, error)

	// rules are the newest that were set.
	rules atomic.Pointer[[]config.Resource]
	// changed tells that the source's devices or the rules have changed.
	changed chan struct{}

	// What follows belongs to one goroutine, which is Run's and later keepFresh's:
	// an offer for each resource that has a rule or is held, and what they were
	// made of.
	offers  []*offer
	applied *[]config.Resource
	devices []discovery.Device
	// gone are the pods that were found to be gone when last looked.
	gone map[string]bool

	// swap is held for writing while what offers have is replaced, and for reading
	// by who relies on it that it is not.
	swap sync.RWMutex
	// board is what others may look at.
	board board
	// doors serve the offers.
	doors *doors
	trim  *trimmer
	pods  podWatch
	// streamsEnded counts the kubelet's streams that have ended.
	streamsEnded atomic.Int64
	// What is wrong with listing GPUs, with offering them, and with reading
	// records.
	listing, offering, reading trouble
	// passedOver has, by instance ID, why devices are not offered at all.
	passedOver map[string]string
}

// New returns an advertiser, or an error that says what is wrong with config.
func New(config Config) (*Advertiser, error) {
	switch {
	case config.Source == nil, config.Recorder == nil, config.Ready == nil && config.Inject == nil, config.Log == nil:
		return nil, errors.New("set up the advertiser: a source, a recorder, a readiness check and a log are needed")
	case config.KubeletDir == "":
		return nil, errors.New("set up the advertiser: the kubelet's device plugin folder is not named")
	}
	if len(config.Resources) == 0 {
		return nil, errors.New("set up the advertiser: no resource is named")
	}
	for _, rule := range config.Resources {
		if err := CheckReplicas(rule.Replicas); err != nil {
			return nil, fmt.Errorf("set up the advertiser: %s: %w", rule.Name, err)
		}
	}
	a := &Advertiser{
		config:  config,
		timing:  defaultTiming(),
		now:     time.Now,
		random:  rand.Float64,
		changed: make(chan struct{}, 1),
		trim:    newTrimmer(),
	}
	a.books = func() (books, error) { return readBooks(filepath.Join(config.KubeletDir, kubeletCheckpoint)) }
	a.pods = podWatch{list: config.Pods, running: a.kubeletRun}
	a.doors = newDoors()
	a.SetResources(config.Resources)
	return a, nil
}

// SetResources has rules in force from now on, in place of those that were; they
// must be as [config.Resource] wants them. It may be called at any time and by
// anybody, and does not wait.
//
// A GPU that belongs to another resource by it cannot be allocated any more as
// what it was, and as the other one not before nothing holds it as what it was.
// A name without any rule is taken back when nothing is held by it.
func (a *Advertiser) SetResources(rules []config.Resource) {
	if now := a.rules.Load(); now != nil && reflect.DeepEqual(*now, rules) {
		return
	}
	rules = slices.Clone(rules)
	a.rules.Store(&rules)
	signal(a.changed)
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
	a.board.round(a.now())
	if err := a.begin(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("advertise GPUs: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	folder := folderWatch{folder: a.config.KubeletDir, doors: a.doors, poll: a.timing.poll, log: a.config.Log}
	a.doors.start(func(serve func(context.Context) error) (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		group.Go(func() error { defer cancel(); return serve(ctx) })
		return cancel
	})
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
		name:     SocketName(o.resource),
		options:  options(a.config.Ready != nil),
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
	a.applied = a.rules.Load()
	for _, name := range append(resources.Names(*a.rules.Load()), a.heldNames(live)...) {
		a.addOffer(name, live)
	}
	a.board.saw(nil, a.offers)
	devices, err := a.config.Source.Devices(ctx)
	if err == nil {
		if a.config.FailOnInitError && !anyOffered(devices, *a.rules.Load()) {
			return errors.New("there is no GPU on this node that belongs to a resource, and an exit was asked for in that case")
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
	socket, err := localgrpc.Identify(filepath.Join(a.config.KubeletDir, kubeletSocket))
	return kubeletRun{socket: socket, streamsEnded: a.streamsEnded.Load()}, err
}

func anyOffered(devices []discovery.Device, rules []config.Resource) bool {
	return slices.ContainsFunc(resources.Assign(devices, rules), func(d resources.Assigned) bool { return d.Rule != nil })
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
		a.board.round(a.now())
		devices, err := a.config.Source.Devices(ctx)
		if ctx.Err() != nil {
			return nil
		}
		a.report(err)
		switch {
		case err == nil:
		case a.applied == a.rules.Load():
			continue
		default:
			// New rules are for the GPUs that were there at the last look.
			devices = a.devices
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

// logPassedOver logs, once each, the devices that no resource has a place for.
func (a *Advertiser) logPassedOver(devices []resources.Assigned) {
	before := a.passedOver
	a.passedOver = map[string]string{}
	for _, d := range devices {
		// Every Windows has a software renderer; and what no rule is for was meant
		// to be left out. Nothing is wrong with them.
		reason, level := d.Reason, logrus.InfoLevel
		if err := offerable(d.Device); err != nil && !d.Device.Software {
			reason, level = err.Error(), logrus.WarnLevel
		}
		if reason == "" {
			continue
		}
		id := d.Device.InstanceID
		a.passedOver[id] = reason
		if before[id] != reason {
			a.config.Log.WithFields(logrus.Fields{"gpu": d.Device.Name(), "instanceID": id, "reason": reason}).Log(level, "device is not offered")
		}
	}
}
