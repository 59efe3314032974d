// Package nri is the NRI plugin: it answers the container runtime with an NRI
// ContainerAdjustment when a container is created.
//
// What the container gets, [decision.Decider] decides. [Adjuster] carries the
// question and the answer over NRI; [Plugin] is the hooks; [Runner] keeps the
// plugin registered with the runtime; [Evictor] stops containers that were
// started without what they were promised.
package nri

import (
	"context"
	"sync/atomic"

	"github.com/containerd/nri/pkg/api"

	"directx-nri/nri/decision"
	"directx-nri/ocispec"
	"directx-nri/ocispec/adjustment"
)

// Adjuster adjusts a pod's container.
type Adjuster struct {
	decision.Decider
	// OS is the containers' operating system.
	OS ocispec.OS

	// policy is what Configure was called with last, in place of the decider's.
	policy atomic.Pointer[decision.Policy]
}

// Configure sets the policy from the next decision on. One that is being made goes
// on with what it began with.
func (a *Adjuster) Configure(policy decision.Policy) { a.policy.Store(&policy) }

// Adjust returns what makes container the one that its allocations promise, or
// nil for a container that has none. An error means that the container must
// not start; it is one line that says who, what, why and what to do.
func (a *Adjuster) Adjust(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, error) {
	decider := a.Decider
	if policy := a.policy.Load(); policy != nil {
		decider.Policy = *policy
	}
	edits, ok, err := decider.Decide(ctx, describe(a.OS, pod, container))
	if err != nil || !ok {
		return nil, err
	}
	return adjustment.New(edits, a.OS, container.GetMounts()), nil
}

// describe returns container as a decision sees it.
func describe(os ocispec.OS, pod *api.PodSandbox, container *api.Container) decision.Container {
	return decision.Container{
		OS:          os,
		ID:          container.GetId(),
		Pod:         &decision.Pod{UID: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName()},
		Name:        container.GetName(),
		Env:         container.GetEnv(),
		Annotations: container.GetAnnotations(), PodAnnotations: pod.GetAnnotations(),
	}
}

// unadjusted tells whether container presents tokens and was made without the
// plugin's adjustment.
func unadjusted(os ocispec.OS, container *api.Container) bool {
	return decision.Unadjusted(os, container.GetEnv(), container.GetAnnotations())
}
