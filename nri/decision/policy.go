package decision

import (
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/discovery"
	"directx-nri/internal/config"
	"directx-nri/nri/extramounts"
	"directx-nri/ocispec"
)

// Policy is what a node's configuration says about what containers get. The zero
// value gives each GPU by its location path, with what its driver lists, and
// nothing that a pod asks for beside it.
type Policy struct {
	// ByClass gives Windows containers all GPUs of the node, by their interface
	// class. What "auto" stands for is not for here: capabilities.Resolve says.
	ByClass bool
	// RuntimeFiles change which files the containers of a vendor's GPUs get.
	RuntimeFiles []config.RuntimeFiles
	// ExtraMounts is what pods may ask for beside them.
	ExtraMounts config.ExtraMounts
	// VisibilityHints has containers told which GPUs are theirs.
	VisibilityHints bool
}

// PolicyOf returns the policy of the configuration c on a node whose containers
// are given GPUs by their class, or not.
func PolicyOf(c config.Config, byClass bool) Policy {
	return Policy{ByClass: byClass, RuntimeFiles: c.RuntimeFiles, ExtraMounts: c.ExtraMounts, VisibilityHints: c.VisibilityHints}
}

// A request for further files: the annotation on a pod, for all of its containers
// that have an allocation, or, with a dot and the container's name behind it, for
// one of them, which gets the files of both. A standalone container may ask by the
// variable too, which means nothing in a pod. [extramounts.Parse] says how it is
// written.
//
// What follows the slash in an annotation's name has at most 63 characters, so that
// a container with a name longer than 50 can be asked for by the pod's alone.
const (
	ExtraMountsAnnotation = "directx.microsoft.com/extra-mounts"
	ExtraMountsVariable   = "DIRECTX_EXTRA_MOUNTS"
)

// wanted is a request for further files as it was written, and where.
type wanted struct{ name, text string }

// wants returns what c asks for beside its GPUs' own files.
func wants(c Container) []wanted {
	var list []wanted
	keys := []string{ExtraMountsAnnotation}
	if c.Pod != nil && c.Name != "" {
		keys = append(keys, ExtraMountsAnnotation+"."+c.Name)
	}
	for _, key := range keys {
		// The shim finds the pod's annotations among the container's.
		text, ok := c.PodAnnotations[key]
		if !ok {
			text, ok = c.Annotations[key]
		}
		if ok {
			list = append(list, wanted{"annotation " + key, text})
		}
	}
	if c.Pod == nil && len(list) == 0 {
		if text, ok := lookup(c, ExtraMountsVariable); ok && text != "" {
			list = append(list, wanted{ExtraMountsVariable, text})
		}
	}
	return list
}

// lookup returns the value of c's variable name, the last where there are several.
func lookup(c Container, name string) (value string, ok bool) {
	for _, variable := range c.Env {
		n, v, _ := strings.Cut(variable, "=")
		if n == name || c.OS == ocispec.Windows && strings.EqualFold(n, name) {
			value, ok = v, true
		}
	}
	return value, ok
}

// extraMounts returns the mounts of what c asks for beside the mounts given.
func (d *Decider) extraMounts(c Container, devices []discovery.Device, given []specs.Mount) ([]specs.Mount, error) {
	var requests []extramounts.Request
	var names []string
	for _, w := range wants(c) {
		list, err := extramounts.Parse(w.name, w.text)
		if err != nil {
			return nil, Because(ReasonPolicy, fmt.Errorf("extra mounts: %w; correct it", err))
		}
		requests, names = append(requests, list...), append(names, w.name)
	}
	policy := extramounts.Policy{ExtraMounts: d.Policy.ExtraMounts, OS: c.OS, Files: d.Files}
	mounts, err := policy.Mounts(requests, devices, given)
	if err != nil {
		return nil, Because(ReasonPolicy, fmt.Errorf("extra mounts (%s): %w", strings.Join(names, ", "), err))
	}
	return mounts, nil
}
