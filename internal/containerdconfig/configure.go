package containerdconfig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/internal/tomledit"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Settings are the settings that [Configure] makes.
type Settings struct {
	Release
	// Shim is the absolute path of the runtime shim, "" to leave the handlers unchanged.
	Shim string
	// RealShim is the path of the shim that the runtime shim runs, "" if it is unknown.
	RealShim string
	// Handlers are the names of the handlers that use the runtime shim. If it is empty and
	// AddHandler is not set, all handlers that can have GPUs and run no other shim use it.
	Handlers []string
	// AddHandler is the name of a handler to add: a copy of the default handler that
	// uses the runtime shim.
	AddHandler string
	// NRI enables NRI.
	NRI bool
}

// Result is a configuration and its changes.
type Result struct {
	Text  []byte
	Edits []tomledit.Edit
	// Handlers are the names of the handlers that use the shim.
	Handlers []string
	// Warnings are a line each.
	Warnings []string
}

// Configure returns text with the settings. It is idempotent.
func Configure(text []byte, s Settings) (Result, error) {
	d, err := parse(text)
	if err != nil {
		return Result{}, err
	}
	e := &tomledit.Editor{Document: d}
	if len(d.Values) == 0 {
		e.Set(nil, "version", newFileVersion)
	}
	c, err := read(e.Document, s.Release)
	if err != nil {
		return Result{}, err
	}
	versionEdits := len(e.Edits)
	r := Result{Text: text}
	if s.Shim != "" {
		if disables(d, criPlugin(c.Version)) {
			return Result{}, fmt.Errorf("disabled_plugins has %s, without which there are no runtime handlers: remove it there", criPlugin(c.Version))
		}
		if r.Handlers, r.Warnings, err = useShim(e, c, s); err != nil {
			return Result{}, err
		}
	}
	if s.NRI && !c.NRI {
		if disables(d, nriPlugin(c.Version)) {
			return Result{}, fmt.Errorf("disabled_plugins has %s: remove it there to turn NRI on", nriPlugin(c.Version))
		}
		e.Set([]string{"plugins", nriPlugin(c.Version)}, "disable", false)
	}
	if len(e.Edits) > versionEdits { // A version without other settings changes nothing.
		r.Text, r.Edits = e.Bytes(), e.Edits
	}
	return r, e.Err
}

// notForPods is the warning about containerd 2 on Linux, which runs the shim for a
// pod's sandbox only.
// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/shim_manager.go
const notForPods = "containerd 2 on Linux runs the shim for a pod's sandbox only: pods get GPUs by NRI, and the shim serves ctr and nerdctl"

// useShim makes the requested handlers use the shim, and returns their names.
func useShim(e *tomledit.Editor, c Config, s Settings) (handlers, warnings []string, err error) {
	writeBuiltinHandlers(e, c, s)
	if s.AddHandler != "" {
		s.Handlers = append(slices.Clone(s.Handlers), s.AddHandler)
		if err := addHandler(e, c, s); err != nil {
			return nil, nil, err
		}
	}
	if e.Err != nil {
		return nil, nil, e.Err
	}
	if c, err = read(e.Document, s.Release); err != nil { // with the handlers that were written
		return nil, nil, err
	}
	choose := selectEligible
	if len(s.Handlers) > 0 {
		choose = selectNamed
	}
	selected, warnings, err := choose(c, s)
	if err != nil {
		return nil, nil, err
	}
	for _, h := range selected {
		if err := setShim(e, h, s); err != nil {
			return nil, nil, err
		}
	}
	if s.OS == "linux" && s.merges(c.Version) {
		warnings = append(warnings, notForPods)
	}
	return names(selected), warnings, e.Err
}

// setShim makes a handler use the shim and pass on the annotations of directx-nri.
func setShim(e *tomledit.Editor, h Handler, s Settings) error {
	if h.values["runtime_type"] == nil || !h.InFile {
		runtimeType := cmp.Or(h.RuntimeType, tomledit.Get[string](builtinHandlers(s.OS), h.Name, "runtime_type"))
		if runtimeType == "" {
			return fmt.Errorf("handler %s has no runtime_type: set it in the file", h.Name)
		}
		e.Set(h.path, "runtime_type", runtimeType)
	}
	if h.RuntimePath != s.Shim {
		e.Set(h.path, "runtime_path", s.Shim)
	}
	e.AddItem(h.path, "pod_annotations", AnnotationPattern, h.PodAnnotations)
	e.AddItem(h.path, "container_annotations", AnnotationPattern, h.ContainerAnnotations)
	return nil
}

func hasName(name string) func(Handler) bool { return func(h Handler) bool { return h.Name == name } }

// checkReplaceable returns an error if the handler runs a shim that the runtime shim cannot
// replace, because the real shim is another one.
func (s Settings) checkReplaceable(h Handler) error {
	same := h.RuntimePath == s.RealShim || s.OS == "windows" && winpath.Equal(h.RuntimePath, s.RealShim)
	if h.RuntimePath == "" || h.UsesShim() || same {
		return nil
	}
	return fmt.Errorf("runtime handler %s has runtime_path %s, which is not the real shim (shim.realShim)", h.Name, h.RuntimePath)
}

func selectNamed(c Config, s Settings) (selected []Handler, warnings []string, err error) {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(s.Handlers))) {
		i := slices.IndexFunc(c.Handlers, hasName(name))
		if i < 0 {
			return nil, nil, fmt.Errorf("there is no runtime handler %q among %s", name,
				cmp.Or(strings.Join(names(c.Handlers), ", "), "none"))
		}
		h := c.Handlers[i]
		if err := h.CheckEligible(s.OS); err != nil && h.RuntimeType != "" {
			return nil, nil, fmt.Errorf("its containers cannot have GPUs: %w", err)
		}
		if err := s.checkReplaceable(h); err != nil {
			warnings = append(warnings, fmt.Sprintf("%v: it is replaced", err))
		}
		selected = append(selected, h)
	}
	return selected, warnings, nil
}

// selectEligible returns all handlers that can have GPUs and run no other shim.
func selectEligible(c Config, s Settings) (selected []Handler, warnings []string, err error) {
	for _, h := range c.Handlers {
		eligibleErr, shimErr := h.CheckEligible(s.OS), s.checkReplaceable(h)
		switch {
		case eligibleErr == nil && shimErr == nil:
			selected = append(selected, h)
		case eligibleErr == nil:
			warnings = append(warnings, fmt.Sprintf("%v: it is left unchanged; --handler %s replaces it", shimErr, h.Name))
		case h.hasOtherSandboxer():
			warnings = append(warnings, fmt.Sprintf("%v: it is left unchanged", eligibleErr))
		}
	}
	if len(selected) == 0 {
		err = fmt.Errorf("no runtime handler can have GPUs: %s", cmp.Or(strings.Join(warnings, ", "), WhyNotEligible(c.Handlers, s.OS)))
	}
	return selected, warnings, err
}

func names(handlers []Handler) (all []string) {
	for _, h := range handlers {
		all = append(all, h.Name)
	}
	return all
}

// WhyNotEligible returns the reasons why the handlers cannot have GPUs.
func WhyNotEligible(handlers []Handler, nodeOS string) string {
	var reasons []string
	for _, h := range handlers {
		if err := h.CheckEligible(nodeOS); err != nil {
			reasons = append(reasons, err.Error())
		}
	}
	return cmp.Or(strings.Join(reasons, ", "), "containerd has none")
}

// writeBuiltinHandlers writes the built-in handlers to the file if containerd replaces them with
// the handlers of the file, and the file has none yet.
func writeBuiltinHandlers(e *tomledit.Editor, c Config, s Settings) {
	inFile := func(h Handler) bool { return h.InFile && h.path[len(h.path)-2] == "runtimes" }
	if s.merges(c.Version) || slices.ContainsFunc(c.Handlers, inFile) {
		return
	}
	for _, h := range c.Handlers {
		if !h.InFile {
			e.SetTable(h.path, h.values)
		}
	}
}

// addHandler adds a copy of the default handler, or of another one that can have GPUs, unless the
// handler exists.
func addHandler(e *tomledit.Editor, c Config, s Settings) error {
	if slices.ContainsFunc(c.Handlers, hasName(s.AddHandler)) {
		return nil
	}
	eligible := Eligible(c.Handlers, s.OS)
	if len(eligible) == 0 {
		return fmt.Errorf("the runtime handler %s cannot be added, because no runtime handler can have GPUs: %s",
			s.AddHandler, WhyNotEligible(c.Handlers, s.OS))
	}
	original := eligible[max(0, slices.IndexFunc(eligible, hasName(c.defaultHandler)))]
	e.SetTable([]string{"plugins", criPlugin(c.Version), "containerd", "runtimes", s.AddHandler}, original.values)
	return nil
}

// Undo reverts edits of text: see [tomledit.Editor.Undo]. Notes describe the edits that cannot be
// reverted.
func Undo(text []byte, edits []tomledit.Edit) (result []byte, notes []string, err error) {
	d, err := parse(text)
	if err != nil {
		return nil, nil, err
	}
	e := &tomledit.Editor{Document: d}
	e.Undo(edits, AnnotationPattern)
	return e.Bytes(), e.Notes, e.Err
}

// RemoveShim removes the runtime_path of the runtime shim and [AnnotationPattern] from text. It is for
// a configuration without a record of the edits. Notes describe what may differ from the original.
func RemoveShim(text []byte, release Release) (result []byte, notes []string, err error) {
	d, err := parse(text)
	if err != nil {
		return nil, nil, err
	}
	c, err := read(d, release)
	if err != nil {
		return nil, nil, err
	}
	e := &tomledit.Editor{Document: d}
	for _, h := range c.Handlers {
		if h.RuntimePath == "" || !h.UsesShim() {
			continue
		}
		e.Remove(append(slices.Clone(h.path), "runtime_path"))
		for _, name := range []string{"pod_annotations", "container_annotations"} {
			path := append(slices.Clone(h.path), name)
			patterns := tomledit.Strings(e.Values, path...)
			switch {
			case slices.Equal(patterns, []string{AnnotationPattern}):
				e.Remove(path)
			case slices.Contains(patterns, AnnotationPattern):
				e.RemoveItem(path, AnnotationPattern)
			}
		}
		notes = append(notes, fmt.Sprintf("handler %s is kept; a runtime_path that it had before is unknown", h.Name))
	}
	if len(notes) > 0 && c.NRI && !release.merges(c.Version) {
		notes = append(notes, "NRI stays enabled: whether it was enabled before is unknown")
	}
	return e.Bytes(), append(e.Notes, notes...), e.Err
}
