// Package preview tells what the runtime shim would do to a container's spec,
// and does nothing: no record is bound, and nothing is written.
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

// Question is what is asked about.
type Question struct {
	// Spec is the content of a config.json.
	Spec []byte
	// ID is the container's ID.
	ID string
	// Request, when it is not "", is what the container is taken to ask for, as
	// [decision.VisibleVariable] says it, in place of all that its spec says: it is
	// taken for a standalone one.
	Request string
	// Token, when it is not "", is an allocation that the container is taken to
	// present. Of a spec that is of no pod, it is taken to be the container that
	// the allocation is bound to.
	Token allocation.Token
}

// Node is the node that the container would be started on.
type Node struct {
	// Source returns where its GPUs come from. It is called when a container asks.
	Source func() (discovery.Source, error)
	Store  *allocation.Store
	Files  decision.Files
	// Policy returns what the node's configuration says about what containers of an
	// operating system get; nil stands for the zero [decision.Policy].
	Policy func(ocispec.OS) decision.Policy
}

// Answer is what the shim would do.
type Answer struct {
	Container decision.Container
	// Untouched is why the spec stays as it is, "" when the shim changes it.
	Untouched string
	// Refused is why the container would not start, in the shim's own words, nil
	// when it would.
	Refused error
	// Outcome is what the container gets, also when its spec has it already.
	Outcome decision.Outcome
	// Spec is the content of config.json that the container starts with.
	Spec []byte

	tokens []string
}

// Why a spec stays as it is.
const (
	// NeverGiven is the reason for what the shim never looks at.
	NeverGiven = "a pod's sandbox and a process of the host are given no GPU"
	// AsksNothing is the reason for most containers.
	AsksNothing = "it asks for no GPU"
	// HasNoGPU is the reason for one that has devices of its own.
	HasNoGPU = "the devices that it has are no GPUs of this node"
	// HasAll is the reason for a spec that was changed before.
	HasAll = "it has all that it gets already"
)

// Ask answers q. Its errors are of a spec that cannot be read, and of a node that
// cannot be asked: the shim may read all of it, where we may not.
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
		a.Container, a.Untouched = decision.Container{OS: facts.OS, ID: q.ID}, NeverGiven
		return a, nil
	}
	switch {
	case q.Request != "":
		a.Container = asking(container, q.Request)
	case q.Token != "":
		a.Container, err = presenting(container, q.Token, node.Store)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return a, notOurs(err)
		case err != nil:
			a.Refused = a.Container.Refuse(err)
			return a, nil
		}
	}
	if !decision.RequestsGPU(a.Container) {
		a.Untouched = AsksNothing
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
		return a, notOurs(err)
	case err != nil:
		a.Refused = err
		return a, nil
	case !ok:
		a.Untouched = HasNoGPU
		return a, nil
	}
	edited, changed, err := spec.Apply(outcome.Edits)
	if err != nil {
		a.Refused = a.Container.Refuse(err)
		return a, nil
	}
	if !changed {
		a.Untouched = HasAll
	}
	a.Outcome, a.Spec = outcome, edited
	return a, nil
}

func notOurs(err error) error {
	return fmt.Errorf("what the shim would do cannot be told: %w; ask as root, or as an administrator", err)
}

// asking returns c as a standalone container that asks for request and nothing
// else.
func asking(c decision.Container, request string) decision.Container {
	c.Pod, c.Name = nil, ""
	c.Annotations = maps.Clone(c.Annotations)
	delete(c.Annotations, decision.VisibleAnnotation)
	c.Env = append(without(c, decision.VisibleVariable, allocation.EnvPrefix), decision.VisibleVariable+"="+request)
	return c
}

// presenting returns c as a container of a pod that presents token for its
// resource, and nobody else's.
func presenting(c decision.Container, token allocation.Token, store *allocation.Store) (decision.Container, error) {
	record, err := store.Get(token)
	if errors.Is(err, allocation.ErrNotFound) {
		err = fmt.Errorf("%w; its pod has ended, or --state-dir names the folder of its records", err)
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

// without returns c's variables but for those that begin with one of prefixes.
func without(c decision.Container, prefixes ...string) []string {
	return slices.DeleteFunc(slices.Clone(c.Env), func(variable string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool {
			return strings.HasPrefix(variable, prefix) || c.OS == ocispec.Windows && strings.HasPrefix(strings.ToUpper(variable), prefix)
		})
	})
}

// tokensOf returns the tokens that stand in a spec, and token.
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

// Hide returns text with the container's tokens replaced: who knows a token may
// present it. In JSON that nobody has normalised a token may be written otherwise.
func (a Answer) Hide(text string) string {
	for _, token := range a.tokens {
		text = strings.ReplaceAll(text, token, "(token)")
	}
	return text
}
