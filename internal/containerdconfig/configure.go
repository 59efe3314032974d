package containerdconfig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

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
	Edits []Edit
	// Handlers are the names of the handlers that use the shim.
	Handlers []string
	// Warnings are a line each.
	Warnings []string
}

// Configure returns text with the settings. It is idempotent.
func Configure(text []byte, s Settings) (Result, error) {
	e, err := newTOMLEditor(text)
	if err != nil {
		return Result{}, err
	}
	version, err := e.doc.version()
	if err != nil {
		return Result{}, err
	}
	if version == 0 {
		e.set(nil, "version", newFileVersion)
	}
	c, err := e.doc.read(s.Release)
	if err != nil {
		return Result{}, err
	}
	r, versionEdits := Result{Text: text}, len(e.edits)
	if s.Shim != "" {
		if e.doc.disables(criPlugin(c.Version)) {
			return Result{}, fmt.Errorf("disabled_plugins has %s, without which there are no runtime handlers: remove it there", criPlugin(c.Version))
		}
		if r.Handlers, r.Warnings, err = e.useShim(c, s); err != nil {
			return Result{}, err
		}
	}
	if s.NRI && !c.NRI {
		if e.doc.disables(nriPlugin(c.Version)) {
			return Result{}, fmt.Errorf("disabled_plugins has %s: remove it there to turn NRI on", nriPlugin(c.Version))
		}
		e.set([]string{"plugins", nriPlugin(c.Version)}, "disable", false)
	}
	if len(e.edits) > versionEdits { // A version without other settings changes nothing.
		r.Text, r.Edits = e.doc.bytes(e.doc.text), e.edits
	}
	return r, e.err
}

// notForPods is the warning about containerd 2 on Linux, which runs the shim for a
// pod's sandbox only.
// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/shim_manager.go
const notForPods = "containerd 2 on Linux runs the shim for a pod's sandbox only: pods get GPUs by NRI, and the shim serves ctr and nerdctl"

// useShim makes the requested handlers use the shim, and returns their names.
func (e *tomlEditor) useShim(c Config, s Settings) (handlers, warnings []string, err error) {
	e.writeBuiltinHandlers(c, s)
	if s.AddHandler != "" {
		s.Handlers = append(slices.Clone(s.Handlers), s.AddHandler)
		if !slices.ContainsFunc(c.Handlers, hasName(s.AddHandler)) {
			e.addHandler(c, s)
			if c, err = e.doc.read(s.Release); cmp.Or(e.err, err) != nil {
				return nil, nil, cmp.Or(e.err, err)
			}
		}
	}
	var selected []Handler
	if len(s.Handlers) > 0 {
		selected, warnings, err = selectNamed(c, s)
	} else {
		selected, warnings, err = selectEligible(c, s)
	}
	if err != nil {
		return nil, nil, err
	}
	for _, h := range selected {
		e.setShim(h, s)
		handlers = append(handlers, h.Name)
	}
	if s.OS == "linux" && s.merges(c.Version) {
		warnings = append(warnings, notForPods)
	}
	return handlers, warnings, e.err
}

func (e *tomlEditor) has(path []string) bool { return lookup(e.doc.values, path...) != nil }

// setShim makes a handler use the shim and pass on the annotations of directx-nri.
func (e *tomlEditor) setShim(h Handler, s Settings) {
	if h.values["runtime_type"] == nil || !h.InFile && !e.has(h.path) {
		runtimeType := cmp.Or(h.RuntimeType, get[string](builtinHandlers(s.OS), h.Name, "runtime_type"))
		if runtimeType == "" {
			e.fail("handler %s has no runtime_type: set it in the file", h.Name)
		}
		e.set(h.path, "runtime_type", runtimeType)
	}
	if h.RuntimePath != s.Shim {
		e.set(h.path, "runtime_path", s.Shim)
	}
	e.addPattern(h.path, "pod_annotations", h.PodAnnotations)
	e.addPattern(h.path, "container_annotations", h.ContainerAnnotations)
}

func hasName(name string) func(Handler) bool { return func(h Handler) bool { return h.Name == name } }

// checkReplaceable returns an error if the handler runs a shim that the runtime shim cannot
// replace, because the real shim is another one.
func (s Settings) checkReplaceable(h Handler) error {
	same := h.RuntimePath == s.RealShim || s.OS == "windows" && winpath.Equal(h.RuntimePath, s.RealShim)
	if h.RuntimePath == "" || h.UsesShim() || same {
		return nil
	}
	return fmt.Errorf("runtime handler %s has runtime_path %s, which is not the real shim (shim.runtime)", h.Name, h.RuntimePath)
}

// selectNamed returns the handlers that are named in the settings.
func selectNamed(c Config, s Settings) (selected []Handler, warnings []string, err error) {
	for _, name := range s.Handlers {
		if !slices.ContainsFunc(c.Handlers, hasName(name)) {
			return nil, nil, fmt.Errorf("there is no runtime handler %q among %s", name, names(c.Handlers))
		}
	}
	for _, h := range c.Handlers {
		if !slices.Contains(s.Handlers, h.Name) {
			continue
		}
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

func names(handlers []Handler) string {
	var all []string
	for _, h := range handlers {
		all = append(all, h.Name)
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}

// WhyNotEligible returns the reasons why the handlers cannot have GPUs.
func WhyNotEligible(handlers []Handler, goos string) string {
	var reasons []string
	for _, h := range handlers {
		if err := h.CheckEligible(goos); err != nil {
			reasons = append(reasons, err.Error())
		}
	}
	return cmp.Or(strings.Join(reasons, ", "), "containerd has none")
}

// writeBuiltinHandlers writes the built-in handlers to the file if containerd replaces them with
// the handlers of the file, and the file has none yet.
func (e *tomlEditor) writeBuiltinHandlers(c Config, s Settings) {
	inFile := func(h Handler) bool { return h.InFile && h.path[len(h.path)-2] == "runtimes" }
	if s.merges(c.Version) || slices.ContainsFunc(c.Handlers, inFile) {
		return
	}
	for _, h := range c.Handlers {
		if !h.InFile && !e.has(h.path) {
			e.setTable(h.path, h.values)
		}
	}
}

// addHandler adds a copy of the default handler.
func (e *tomlEditor) addHandler(c Config, s Settings) {
	i := slices.IndexFunc(c.Handlers, func(h Handler) bool { return h.Name == c.defaultHandler && h.CheckEligible(s.OS) == nil })
	if i < 0 {
		i = slices.IndexFunc(c.Handlers, func(h Handler) bool { return h.CheckEligible(s.OS) == nil })
	}
	if i < 0 {
		e.fail("the runtime handler %s cannot be added, because no runtime handler can have GPUs: %s", s.AddHandler, WhyNotEligible(c.Handlers, s.OS))
		return
	}
	e.setTable([]string{"plugins", criPlugin(c.Version), "containerd", "runtimes", s.AddHandler}, c.Handlers[i].values)
}

// setTable writes a table.
func (e *tomlEditor) setTable(table []string, values map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		e.set(table, name, values[name])
	}
}

// Remove removes the runtime_path of the runtime shim and [AnnotationPattern] from text. It is for
// a configuration without a record of the edits. Notes describe what may differ from the original.
func Remove(text []byte, release Release) (result []byte, notes []string, err error) {
	e, err := newTOMLEditor(text)
	if err != nil {
		return nil, nil, err
	}
	c, err := e.doc.read(release)
	if err != nil {
		return nil, nil, err
	}
	for _, h := range c.Handlers {
		if !h.UsesShim() {
			continue
		}
		for _, name := range []string{"runtime_path", "pod_annotations", "container_annotations"} {
			path := append(slices.Clone(h.path), name)
			entry := e.doc.entry(path)
			switch {
			case entry == nil && e.has(path):
				e.fail("%s is part of an inline table: remove it manually", tomlKey(path))
			case entry == nil:
			case name == "runtime_path" || slices.Equal(stringsOf(e.doc.values, path...), []string{AnnotationPattern}):
				e.replace(entry.line, "")
			case e.hasPattern(path):
				e.removePattern(entry)
			}
		}
		e.note("handler %s is kept; a runtime_path that it had before is unknown", h.Name)
	}
	if len(e.notes) > 0 && c.NRI && !release.merges(c.Version) {
		e.note("NRI stays enabled: whether it was enabled before is unknown")
	}
	return e.doc.bytes(e.doc.text), e.notes, e.err
}
