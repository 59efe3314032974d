package decision

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/decision/extramounts"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
	"github.com/directx-nri/directx-nri/ocispec/modes"
)

// Container is a container that is being created.
type Container struct {
	OS string
	// ID is the runtime's ID of the container.
	ID string
	// Pod is the container's pod, nil for a standalone container.
	Pod *Pod
	// Name is the container's name in its pod.
	Name string
	// Env is the environment as NAME=value.
	Env []string
	// Annotations are those of the container, which the kubelet alone sets in a pod. PodAnnotations are those
	// of its pod, which anyone who creates the pod sets.
	Annotations, PodAnnotations map[string]string
	// Interlock reports that the container has the interlock of the answer to Allocate.
	Interlock bool
	// Devices are the Windows devices of the container's spec.
	Devices []specs.WindowsDevice
	// HyperV reports that the container runs in a virtual machine of its own.
	HyperV bool
}

// Pod identifies a pod. It comes from the runtime and cannot be forged.
type Pod struct {
	UID, Namespace, Name string
}

func (c Container) String() string {
	if c.Pod == nil {
		return fmt.Sprintf("container %q", c.ID)
	}
	return fmt.Sprintf("container %q of pod %s/%s", c.Name, c.Pod.Namespace, c.Pod.Name)
}

func (c Container) fields() logrus.Fields {
	if c.Pod == nil {
		return logrus.Fields{"container": c.ID}
	}
	return logrus.Fields{"pod": c.Pod.Namespace + "/" + c.Pod.Name, "container": c.Name}
}

// Files reads the node's files.
type Files interface {
	gpuedits.Files
	extramounts.Files
}

// Decider decides what containers get.
type Decider struct {
	// Source has the node's GPUs, and Policy is the node policy. [modes.ResolvePolicy] returns both.
	Source discovery.Source
	Policy policy.Resolved
	Store  *allocation.Store
	Files  Files
	Log    logrus.FieldLogger
}

// Open returns the decider of this node for containers of this operating system, and sets log as the node policy
// has it now. stateDir has the node policy, the records and the compiled inventory.
func Open(stateDir, containerOS string, files Files, log *logrus.Logger) (*Decider, error) {
	p, err := policy.Read(stateDir)
	if err != nil {
		return nil, WithReason(ReasonConfig, err)
	}
	p.Log.Configure(log)
	source, err := node.Open(node.Options{UseInventory: p.UseInventory, StateDir: stateDir})
	if err != nil { // Not every decision needs the GPUs.
		source = discovery.Unavailable(err)
	}
	source, resolved := modes.ResolvePolicy(source, p, containerOS)
	return &Decider{Source: source, Policy: resolved, Store: allocation.OpenStore(paths.Allocations(stateDir)), Files: files, Log: log}, nil
}

// Outcome is a decision about a container that makes a request.
type Outcome struct {
	Devices []discovery.Device
	Edits   ocispec.Edits
	// Skipped are files that the container does not get.
	Skipped []string
	// UnchangedReason is why the container gets nothing and must not be changed, "" if it gets GPUs.
	UnchangedReason string

	records []allocation.Entry // to be bound
}

// Decide decides what the container that makes the request gets. It has no effects: after the caller has
// applied the edits, it calls [Decider.Bind]. An error means that the container must not start: see
// [Container.Refuse].
func (d *Decider) Decide(ctx context.Context, request Request) (*Outcome, error) {
	if request.Container.Pod == nil {
		return d.decideStandalone(ctx, request)
	}
	return d.decidePod(ctx, request)
}

// Bind binds the allocations of a request to its container, and logs the outcome. It is the last step of a
// start, so that a refused container takes nothing from another one. An error means that the container
// must not start. If one allocation cannot be bound, some stay bound. A retry has the same holder, so it can
// bind the rest.
func (d *Decider) Bind(ctx context.Context, request Request, outcome *Outcome) error {
	if ctx.Err() != nil {
		return fmt.Errorf("the decision was interrupted: %w", ctx.Err())
	}
	for _, record := range outcome.records {
		if err := d.Store.Bind(record, holderOf(request.Container)); err != nil {
			return fmt.Errorf("%s: %w", record.Resource, err)
		}
	}
	log := d.Log.WithFields(request.Container.fields())
	if outcome.UnchangedReason != "" {
		log.Info("Container starts unchanged: " + outcome.UnchangedReason)
		return nil
	}
	names := make([]string, len(outcome.Devices))
	for i, device := range outcome.Devices {
		names[i] = device.Name()
	}
	log.WithField("gpus", names).Info("Container gets GPUs")
	for _, file := range outcome.Skipped {
		log.Warn(file)
	}
	return nil
}

// buildOutcome returns the outcome for a container that gets devices and the extra mounts
// that it requests.
func (d *Decider) buildOutcome(request Request, devices []discovery.Device) (*Outcome, error) {
	container := request.Container
	edits, skipped, err := gpuedits.Build(container.OS, devices, container.Env, d.Files, d.Policy)
	if err != nil {
		return nil, err
	}
	resolver := extramounts.Resolver{ExtraMounts: d.Policy.ExtraMounts, OS: container.OS, Files: d.Files}
	lists := request.extraMounts
	if request.extraMountsFromEnv && !d.Policy.Standalone.Environment {
		lists = nil
	}
	extra, err := resolver.Mounts(lists, devices, edits.Mounts)
	if errors.Is(err, extramounts.ErrRead) {
		return nil, err
	}
	if err != nil {
		return nil, WithReason(ReasonPolicy, err)
	}
	edits.Mounts = append(edits.Mounts, extra...)
	return &Outcome{Devices: devices, Edits: edits, Skipped: skipped}, nil
}
