// Package preview decides what the runtime shim would do to a container's spec,
// without binding a record or writing anything.
package preview

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/nri/decision"
	"directx-nri/nri/shim"
	"directx-nri/ocispec"
)

// Question is a container.
type Question struct {
	// Spec is the content of a config.json.
	Spec []byte
	// ID is the container's ID.
	ID string
	// Request, if not "", replaces what the spec requests: the container is a
	// standalone one with this value of [decision.VisibleVariable].
	Request string
	// Token, if not "", is the allocation that the container presents. A spec without
	// a pod is that of the container that the allocation is bound to.
	Token allocation.Token
}

// Node is the node on which the container would start.
type Node struct {
	// Source is called if the container requests a GPU.
	Source func() (discovery.Source, error)
	Store  *allocation.Store
	Files  decision.Files
	// Policy returns the policy for containers of an operating system.
	Policy func(ocispec.OS) decision.Policy
}

// Answer is what the shim would do.
type Answer struct {
	Container decision.Container
	// Unchanged is why the spec is not changed, "" if it is.
	Unchanged string
	// Refused is why the container would not start, or nil.
	Refused error
	// Outcome is what the container gets, even if its spec has it already.
	Outcome decision.Outcome
	// Spec is the content of config.json that the container starts with.
	Spec []byte

	tokens []string
}

// Reasons why a spec is not changed.
const (
	NotEligible = "a pod sandbox or host process gets no GPU"
	NoRequest   = "the container requests no GPU"
	NoGPU       = "the devices of the container are not GPUs of this node"
	Complete    = "it already has everything"
)

// Ask returns what the shim would do. An error means that this is unknown: the spec
// is invalid, or the node cannot be read.
func Ask(ctx context.Context, q Question, node Node) (Answer, error) {
	spec, err := ocispec.ParseSpec(q.Spec)
	if err != nil {
		return Answer{}, err
	}
	facts, err := spec.Facts()
	if err != nil {
		return Answer{}, err
	}
	container, given := shim.Describe(facts, q.ID)
	a := Answer{Container: container, Spec: q.Spec, tokens: tokensOf(facts, q.Token)}
	if !given {
		a.Container, a.Unchanged = decision.Container{OS: facts.OS, ID: q.ID}, NotEligible
		return a, nil
	}
	switch {
	case q.Request != "":
		a.Container = requesting(container, q.Request)
	case q.Token != "":
		a.Container, err = presenting(container, q.Token, node.Store)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return a, denied(err)
		case err != nil:
			a.Refused = a.Container.Refuse(err)
			return a, nil
		}
	}
	if !decision.RequestsGPU(a.Container) {
		a.Unchanged = NoRequest
		return a, nil
	}
	source, err := node.Source()
	if err != nil {
		return a, err
	}
	decider := decision.Decider{Source: source, Store: node.Store, Files: node.Files}
	if node.Policy != nil {
		decider.Policy = node.Policy(a.Container.OS)
	}
	outcome, ok, err := decider.Preview(ctx, a.Container)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return a, denied(err)
	case err != nil:
		a.Refused = err
		return a, nil
	case !ok:
		a.Unchanged = NoGPU
		return a, nil
	}
	edited, changed, err := spec.Apply(outcome.Edits)
	if err != nil {
		a.Refused = a.Container.Refuse(err)
		return a, nil
	}
	if !changed {
		a.Unchanged = Complete
	}
	a.Outcome, a.Spec = outcome, edited
	return a, nil
}

func denied(err error) error {
	return fmt.Errorf("%w; run dxctl as root, or as an administrator on Windows", err)
}

// requesting returns c as a standalone container with the given request only.
func requesting(c decision.Container, request string) decision.Container {
	c.Pod, c.Name = nil, ""
	c.Annotations = maps.Clone(c.Annotations)
	delete(c.Annotations, decision.VisibleAnnotation)
	c.Env = append(without(c, decision.VisibleVariable, allocation.EnvPrefix), decision.VisibleVariable+"="+request)
	return c
}

// presenting returns c as a container of a pod that presents token for its resource.
func presenting(c decision.Container, token allocation.Token, store *allocation.Store) (decision.Container, error) {
	record, err := store.Get(token)
	if errors.Is(err, allocation.ErrNotFound) {
		err = fmt.Errorf("%w; its pod has ended, or --state-dir is wrong", err)
	}
	if err != nil {
		return c, err
	}
	if c.Pod == nil {
		holder, bound, err := store.Holder(token)
		if err != nil {
			return c, err
		}
		if !bound {
			holder = allocation.Holder{PodUID: "(any)", PodNamespace: "(any)", PodName: "(any)", Container: c.ID}
		}
		c.Pod, c.Name = &decision.Pod{UID: holder.PodUID, Namespace: holder.PodNamespace, Name: holder.PodName}, holder.Container
	}
	c.Annotations = maps.Clone(c.Annotations)
	delete(c.Annotations, allocation.AnnotationKey(record.Resource))
	variable := allocation.EnvKey(record.Resource)
	c.Env = append(without(c, variable+"="), variable+"="+string(token))
	return c, nil
}

// without returns c's environment variables without those that begin with one of
// prefixes.
func without(c decision.Container, prefixes ...string) []string {
	return slices.DeleteFunc(slices.Clone(c.Env), func(variable string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool {
			return strings.HasPrefix(variable, prefix) || c.OS == ocispec.Windows && strings.HasPrefix(strings.ToUpper(variable), prefix)
		})
	})
}

// tokensOf returns token and those in a spec.
func tokensOf(facts ocispec.Facts, token allocation.Token) []string {
	var tokens []string
	if token != "" {
		tokens = append(tokens, string(token))
	}
	for _, t := range decision.Tokens(decision.Container{OS: facts.OS, Env: facts.Env}) {
		tokens = append(tokens, string(t))
	}
	for key, value := range facts.Annotations {
		if t, err := allocation.ParseToken(value); err == nil && strings.HasPrefix(key, allocation.AnnotationPrefix) {
			tokens = append(tokens, string(t))
		}
	}
	return tokens
}

// Redact returns text without the container's tokens, which grant GPUs.
func (a Answer) Redact(text string) string {
	for _, token := range a.tokens {
		text = strings.ReplaceAll(text, token, "(token)")
	}
	return text
}
