// Package deviceplugin is the Kubernetes device plugin: it advertises replicas of each GPU
// to the kubelet and records what the kubelet allocates. Its answers to Allocate do not have the
// devices and mounts of a GPU, unless [Config.KubeletAnswer] is set.
//
// One [Plugin] reads the devices and the records, and makes a pool of GPUs for each
// resource. A server for each resource gives the newest pool to the kubelet and allocates
// from it. Pools are immutable, and the decisions are pure functions of a pool.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/metrics"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// Config is the configuration of a [Plugin].
type Config struct {
	// ListDevices lists the node's devices. Those that no container can be given are unhealthy. One
	// goroutine calls it.
	ListDevices func(ctx context.Context) ([]discovery.Device, error)
	Recorder    *allocation.Recorder
	// Policy has the rules that assign GPUs to resources. There is at least one.
	Policy policy.Policy
	// KubeletDir is the kubelet's device plugin directory, on Linux
	// /var/lib/kubelet/device-plugins. It need not exist yet.
	KubeletDir string
	// CheckStart returns an error, with cause and remedy, if no container can start with a GPU now. It is
	// called before each start of a container, concurrently, once for each resource. It must be nil if the
	// kubelet may allocate when it creates a container, and not when it admits the pod, as on Windows up to
	// Kubernetes 1.37: such a kubelet would never start the container (see options), and can have several
	// allocations in flight (see allocateGuard).
	CheckStart func(ctx context.Context) error
	// Pods finds the containers that hold replicas, and reports the pods that no longer exist.
	Pods *PodTracker
	// OnDevices is called with the devices and their resources each time the devices have been listed.
	OnDevices func([]resources.Device)
	// KubeletAnswer, if set, makes the answers to the kubelet, which have no ID then.
	KubeletAnswer KubeletAnswer
	// NodeOS is the operating system of the node's containers, "windows" or "linux". It
	// determines which GPUs they can have, and the form of the interlock.
	NodeOS  string
	Metrics *metrics.Metrics
	Log     logrus.FieldLogger
}

// timing are the durations that the package waits for. Tests shorten them.
type timing struct {
	// pollInterval is the interval at which sockets are checked and failed steps are retried. It is also
	// the delay after which devices, records and pods are read again after an allocation.
	pollInterval time.Duration
	// unwatchedInterval is pollInterval while the kubelet does not watch the list.
	unwatchedInterval time.Duration
	// recheckInterval is the interval at which devices, records and pods are read again.
	recheckInterval time.Duration
	// watchTimeout is how long after a registration the kubelet may take to call ListAndWatch.
	watchTimeout time.Duration
	// settleTime is how long the kubelet may take to end a connection whose stream has ended.
	settleTime time.Duration
	// stopTimeout is how long a server that stops waits for calls before it ends their contexts.
	stopTimeout time.Duration
	// answerDelay is how long an allocation takes at least, if allocations can overlap: see [allocateGuard].
	answerDelay time.Duration
}

func defaultTiming() timing {
	return timing{
		pollInterval: time.Second, unwatchedInterval: 20 * time.Millisecond, recheckInterval: 5 * time.Second,
		watchTimeout: 10 * time.Second, settleTime: 500 * time.Millisecond, stopTimeout: 2 * time.Second,
		answerDelay: 100 * time.Millisecond,
	}
}

// removalDelay is how long a replica must be free before it leaves the list.
func (t timing) removalDelay() time.Duration { return 4 * t.recheckInterval }

// Plugin is the device plugin for all resources, for one run.
type Plugin struct {
	config Config
	timing timing
	// servers has the server of each resource. It does not change.
	servers map[string]*server
	guard   *allocateGuard // of all servers

	// mu guards the fields that other goroutines read through status.go.
	mu sync.Mutex
	// devices are those of the node, advertised or not.
	devices []discovery.Device
	// listingBegan is when the last listing of devices began.
	listingBegan time.Time
	// listSizeErr is why some devices cannot be advertised.
	listSizeErr error
	// containers are those that hold GPUs, as the kubelet has last listed them, nil if that is unknown.
	containers []containerDevices

	// The goroutine of Run, and later that of refreshLoop, owns the following fields.

	// resourceNames has the resource name of each GPU of this run, by normalized instance ID.
	resourceNames map[string]string
	// unadvertised has the reasons why devices are not advertised, by instance ID.
	unadvertised map[string]string
	hasListed    bool // devices have been listed once
	// The last errors of listing devices, publishing pools and tracking pods.
	lastListErr, lastPublishErr, lastTrackErr errlog.LastError
}

// New returns a plugin.
func New(config Config) *Plugin { return newPlugin(config, defaultTiming()) }

// newPlugin returns a plugin with a server for each resource that has a rule or a record.
func newPlugin(config Config, timing timing) *Plugin {
	p := &Plugin{
		config: config, timing: timing, guard: newAllocateGuard(config, timing),
		servers: map[string]*server{}, resourceNames: map[string]string{},
	}
	records := config.Recorder.Refresh()
	rules := map[string]policy.ResourceRule{} // the first rule of each resource
	for _, record := range records {
		rules[record.Resource] = policy.ResourceRule{}
	}
	for _, rule := range slices.Backward(config.Policy.Resources) {
		rules[rule.Name] = rule
	}
	for name, rule := range rules {
		empty := &pool{resource: name, rule: rule}
		// The kubelet's first list must have all replicas that it has allocated.
		p.servers[name] = newServer(config, timing, p.guard, empty.next(nil, heldByGPU(records, name), time.Now(), timing.removalDelay()))
	}
	return p
}

// ErrRestart is returned by [Plugin.Run] when a new run would advertise GPUs under other names.
var ErrRestart = errors.New("GPUs can be advertised under other resource names")

// Run advertises until ctx ends; then it closes the kubelet's streams, removes its sockets and
// returns nil. Restarts of the kubelet do not end it. It may be called once.
//
// A GPU has one resource name for a whole run: the name in its rule. But if all of its records have
// other names, it keeps the name of the oldest one, and only held replicas can be allocated. When the
// name of a GPU would change, Run returns [ErrRestart]. By then, no call of Allocate is in flight, so
// the records are complete for the next run.
//
// A record is written before Allocate returns. It ends when its pod no longer exists ([PodTracker]), or
// when a newer record of one of its replicas replaces it ([allocation.Recorder.Refresh]).
func (p *Plugin) Run(ctx context.Context) error {
	// The kubelet's first lists must be complete. If the devices cannot be listed, refreshLoop retries.
	err := p.refresh(ctx)
	if err == nil {
		group, ctx := errgroup.WithContext(ctx)
		for _, s := range p.servers {
			group.Go(func() error { return s.run(ctx) })
		}
		group.Go(func() error { return p.refreshLoop(ctx) })
		err = group.Wait()
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("advertise GPUs: %w", err)
}

// refreshLoop refreshes periodically, and after every allocation. It returns [ErrRestart], or nil
// when ctx ends; other errors are retried.
func (p *Plugin) refreshLoop(ctx context.Context) error {
	for {
		interval := p.timing.recheckInterval
		if !p.hasListed {
			interval = p.timing.pollInterval // The kubelet refuses pods until then.
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.guard.succeeded:
			// The kubelet's pods must be listed while the new pod exists.
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(p.timing.pollInterval):
			}
		case <-time.After(interval):
		}
		if err := p.refresh(ctx); err != nil {
			return err
		}
	}
}

// refresh reads devices, records and pods, and publishes the pools.
func (p *Plugin) refresh(ctx context.Context) error {
	p.mu.Lock()
	p.listingBegan = time.Now()
	p.mu.Unlock()
	devices, err := p.config.ListDevices(ctx)
	if ctx.Err() != nil {
		return nil
	}
	p.lastListErr.Log(p.config.Log, err, "No new list of GPUs; what is advertised stays so", "GPUs are listed again")
	records := p.config.Recorder.Refresh()
	if err == nil {
		p.hasListed = true
		if err := p.publishPools(devices, records); err != nil {
			return err
		}
	}
	if !p.isWatched() || p.guard.allocating() {
		return nil
	}
	containers, err := p.trackPods(ctx, records)
	if ctx.Err() != nil {
		return nil
	}
	p.lastTrackErr.Log(p.config.Log, err, "Cannot find out which pods hold GPUs; their allocations are kept",
		"The pods that hold GPUs are known again")
	p.mu.Lock()
	p.containers = containers
	p.mu.Unlock()
	return nil
}

// trackPods ends the records of pods that no longer exist. No container presents the token of a record
// with ByKubelet, so trackPods binds it to the container that the kubelet names. It returns the
// containers that hold GPUs, nil if they cannot be listed.
func (p *Plugin) trackPods(ctx context.Context, records []allocation.Entry) ([]containerDevices, error) {
	containers, ended, err := p.config.Pods.update(ctx, records, p.identifyKubelet)
	for _, id := range ended {
		if endErr := p.config.Recorder.End(id); endErr != nil {
			err = errors.Join(err, endErr) // The next recheck tries again.
			continue
		}
		p.config.Log.WithField("allocation", id).Info("Allocation ended: its pod no longer exists")
	}
	for _, record := range records {
		if !record.ByKubelet || record.Holder != nil || slices.Contains(ended, record.ID) {
			continue
		}
		c, ok := findHolder(containers, record)
		if !ok {
			continue
		}
		fields := logrus.Fields{"allocation": record.ID, "pod": c.pod.String(), "container": c.container}
		p.config.Log.WithFields(fields).Info("Found the container of an allocation")
		err = errors.Join(err, p.config.Recorder.BindByName(record.ID, c.pod.namespace, c.pod.name, c.container))
	}
	return containers, err
}

// identifyKubelet identifies the kubelet's process by its registration socket. It fails while the
// kubelet watches no list: a kubelet that starts lists pods before it replaces the registration socket
// of the previous one, so the process behind the socket may not be the one that lists pods.
func (p *Plugin) identifyKubelet() (localgrpc.FileIdentity, error) {
	if !p.isWatched() {
		return localgrpc.FileIdentity{}, errors.New("the kubelet does not watch any list")
	}
	return localgrpc.Identify(filepath.Join(p.config.KubeletDir, kubeletSocket))
}
