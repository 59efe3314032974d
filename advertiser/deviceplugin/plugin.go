// Package deviceplugin is the Kubernetes device plugin: it advertises replicas of each GPU
// to the kubelet and records what the kubelet allocates. Its answers to Allocate do not have the
// devices and mounts of a GPU, unless [Config.Inject] is set.
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
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

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
	// CheckStart, if set, returns an error, with cause and remedy, if no container can start with a GPU now. It is
	// called before each start of a container, concurrently, once for each resource. It must be nil with
	// AllocatesAtCreation: see options.
	CheckStart func(ctx context.Context) error
	// Pods finds the containers that hold replicas, and reports the pods that no longer exist.
	Pods *PodTracker
	// OnDevices is called with the devices and their resources each time the devices have been listed.
	OnDevices func([]resources.Device)
	// Inject, if set, returns the response to the kubelet that gives one container GPUs of a resource. It is
	// for nodes with neither the NRI plugin nor the runtime shim, and nothing is recorded then. If no response can
	// express the request, its error matches [ErrInvalidRequest].
	Inject func(ctx context.Context, resource string, replicas []allocation.Replica) (*v1beta1.ContainerAllocateResponse, error)
	// AllocatesAtCreation reports that the kubelet may allocate when it creates a container, and not when it admits
	// the pod, as on Windows up to Kubernetes 1.37. Then allocations can overlap: see allocateGuard.
	AllocatesAtCreation bool
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
	// allocateTimeout is how long an allocation may take.
	allocateTimeout time.Duration
	// stopTimeout is how long a server that stops waits for calls before it ends their contexts.
	stopTimeout time.Duration
	// answerDelay and failureInterval are for allocations that can overlap: see [allocateGuard].
	answerDelay, failureInterval time.Duration
}

func defaultTiming() timing {
	return timing{
		pollInterval: time.Second, unwatchedInterval: 20 * time.Millisecond, recheckInterval: 5 * time.Second,
		watchTimeout: 5 * time.Second, settleTime: 500 * time.Millisecond, allocateTimeout: 5 * time.Second, stopTimeout: 2 * time.Second,
		answerDelay: 250 * time.Millisecond, failureInterval: 1500 * time.Millisecond,
	}
}

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
	// containers are those that hold GPUs, as the kubelet has last listed them, nil if that is unknown.
	containers []containerDevices

	// The goroutine of Run, and later that of refreshLoop, owns the following fields.

	states map[string]string // of devices, by instance ID, as they were logged last
	// The last errors of listing devices and tracking pods.
	lastListErr, lastTrackErr errlog.LastError
}

// New returns a plugin.
func New(ctx context.Context, config Config) *Plugin { return newPlugin(ctx, config, defaultTiming()) }

// newPlugin returns a plugin with a server for each resource that has a rule, a record or, with kubelet injection,
// which has no records, a container: the kubelet's first lists must be complete.
func newPlugin(ctx context.Context, config Config, timing timing) *Plugin {
	p := &Plugin{config: config, timing: timing, servers: map[string]*server{}, guard: newAllocateGuard(config, timing)}
	if config.Inject != nil {
		p.containers, _ = config.Pods.list(ctx) // refresh lists them again.
	}
	held := newHoldings(config.Recorder.Refresh(), p.containers)
	rules := map[string]policy.ResourceRule{} // the first rule of each resource
	for resource := range held {
		rules[resource] = policy.ResourceRule{}
	}
	for _, rule := range slices.Backward(config.Policy.Resources) {
		rules[rule.Name] = rule
	}
	for name, rule := range rules {
		// The kubelet's first list must have all replicas that it has allocated.
		first := (&pool{resource: name, rule: rule}).next(nil, held)
		p.servers[name] = newServer(config, timing, p.guard, first)
	}
	return p
}

// Run advertises until ctx ends; then it closes the kubelet's streams, removes its sockets and
// returns nil. Restarts of the kubelet do not end it. It may be called once.
//
// A GPU has the resource name of its rule. When that changes, the replicas that are held keep the old name
// until they are free.
//
// A record is written before Allocate returns. It ends when its pod no longer exists ([PodTracker]), or
// when a newer record of one of its replicas replaces it ([allocation.Recorder.Refresh]).
func (p *Plugin) Run(ctx context.Context) error {
	p.refresh(ctx) // The kubelet's first lists must be complete. If it fails, refreshLoop retries.
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range p.servers {
		group.Go(func() error { return s.run(ctx) })
	}
	group.Go(func() error {
		p.refreshLoop(ctx)
		return nil
	})
	if err := group.Wait(); err != nil {
		return fmt.Errorf("advertise GPUs: %w", err)
	}
	return nil
}

// refreshLoop refreshes periodically, and after every allocation, until ctx ends.
func (p *Plugin) refreshLoop(ctx context.Context) {
	for ctx.Err() == nil {
		interval := p.timing.recheckInterval
		if p.lastListErr != "" {
			interval = p.timing.pollInterval // The kubelet refuses pods until then.
		}
		select {
		case <-ctx.Done():
		case <-p.guard.succeeded:
			// The kubelet's pods must be listed while the new pod exists.
			select {
			case <-ctx.Done():
			case <-time.After(p.timing.pollInterval):
			}
		case <-time.After(interval):
		}
		p.refresh(ctx)
	}
}

// refresh reads devices, records and pods, and publishes the pools. Errors are logged, and what was
// published stays.
func (p *Plugin) refresh(ctx context.Context) {
	p.mu.Lock()
	p.listingBegan = time.Now()
	p.mu.Unlock()
	devices, err := p.config.ListDevices(ctx)
	if ctx.Err() != nil {
		return
	}
	p.lastListErr.Log(p.config.Log, err, "No new list of GPUs; what is advertised stays so", "GPUs are listed again")
	records := p.config.Recorder.Refresh()
	if err == nil {
		p.publishPools(devices, records)
	}
	if !p.isWatched() || p.guard.allocating() {
		return
	}
	containers, ended, err := p.config.Pods.update(ctx, records, p.identifyKubelet)
	if ctx.Err() != nil {
		return
	}
	for _, id := range ended {
		endErr := p.config.Recorder.End(id)
		if endErr == nil {
			p.config.Log.WithField("allocation", id).Info("Allocation ended: its pod no longer exists")
		}
		err = errors.Join(err, endErr) // The next recheck tries again.
	}
	p.lastTrackErr.Log(p.config.Log, err, "Cannot find out which pods hold GPUs; their allocations are kept",
		"The pods that hold GPUs are known again")
	if containers != nil { // Otherwise the last ones hold what they held.
		p.mu.Lock()
		p.containers = containers
		p.mu.Unlock()
	}
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

// publishPools publishes the pools for devices and records.
func (p *Plugin) publishPools(devices []discovery.Device, records []allocation.Entry) {
	matched := resources.Match(devices, p.config.Policy, p.config.NodeOS)
	p.logChanges(matched)
	p.config.OnDevices(matched)
	held := newHoldings(records, p.containers)
	for name, s := range p.servers {
		var gpus []gpu
		for _, d := range matched {
			replicas := 0
			if d.Rule != nil && d.Rule.Name == name {
				replicas = d.Rule.Replicas
			}
			gpus = append(gpus, newGPU(d.Device, replicas))
		}
		before, _ := s.current()
		s.publish(before.next(gpus, held))
	}
	p.mu.Lock()
	p.devices = devices
	p.mu.Unlock()
}

// logChanges logs the state of each device that has changed.
func (p *Plugin) logChanges(devices []resources.Device) {
	before := p.states
	p.states = map[string]string{}
	for _, d := range devices {
		state := "not advertised: " + d.Reason
		if d.Rule != nil {
			state = fmt.Sprintf("advertised as %d of %s", d.Rule.Replicas, d.Rule.Name)
		}
		if d.Rule != nil && !d.Health.OK() {
			state = "cannot be allocated: " + d.Health.Reason
		}
		key := strings.Join(append([]string{state}, d.Notes...), "\n")
		p.states[d.InstanceID] = key
		if key != before[d.InstanceID] {
			level := logrus.InfoLevel
			if d.Rule != nil && (!d.Health.OK() || len(d.Notes) > 0) {
				level = logrus.WarnLevel
			}
			fields := logrus.Fields{
				"gpu": d.Name(), "instanceID": d.InstanceID, "description": d.Description, "driver": d.DriverVersion,
				"state": state, "notes": d.Notes,
			}
			p.config.Log.WithFields(fields).Log(level, "GPU found or changed")
		}
	}
	for id := range before {
		if _, ok := p.states[id]; !ok {
			p.config.Log.WithField("instanceID", id).Warn("GPU is no longer found")
		}
	}
}
