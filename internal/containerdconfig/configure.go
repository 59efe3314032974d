package containerdconfig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Settings are the wanted settings of a configuration.
type Settings struct {
	Target
	// Shim is the absolute path of our shim, "" to leave the handlers unchanged.
	Shim string
	// RealShim is the path of the shim that ours runs, "" if it is unknown.
	RealShim string
	// Handlers are the names of the handlers that use it. The default is each that can
	// have GPUs and runs no other shim, unless AddHandler is set.
	Handlers []string
	// AddHandler is the name of a handler to add: a copy of the default handler that
	// uses our shim.
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
	e, err := newEditor(text)
	if err != nil {
		return Result{}, err
	}
	if version, err := e.doc.version(); err != nil {
		return Result{}, err
	} else if version == 0 {
		e.set(nil, "version", newFileVersion)
	}
	f, err := e.doc.read(s.Target)
	if err != nil {
		return Result{}, err
	}
	r, head := Result{Text: text}, len(e.edits)
	if s.Shim != "" {
		if e.doc.disables(criPlugin(f.Version)) {
			return Result{}, fmt.Errorf("disabled_plugins has %s, without which there are no runtime handlers: remove it there", criPlugin(f.Version))
		}
		if err := e.useShim(f, s, &r); err != nil {
			return Result{}, err
		}
	}
	if s.NRI && !f.NRI {
		if e.doc.disables(nriPlugin(f.Version)) {
			return Result{}, fmt.Errorf("disabled_plugins has %s: remove it there to turn NRI on", nriPlugin(f.Version))
		}
		e.set([]string{"plugins", nriPlugin(f.Version)}, "disable", false)
	}
	if len(e.edits) > head { // A version alone changes nothing.
		r.Text, r.Edits = e.doc.bytes(e.doc.text), e.edits
	}
	return r, e.err
}

// notForPods is the warning about containerd 2 on Linux, which runs the shim for a
// pod's sandbox only.
// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/shim_manager.go
const notForPods = "containerd 2 on Linux runs the shim for a pod's sandbox only: pods get GPUs by NRI, and the shim serves ctr and nerdctl"

// useShim makes the requested handlers use the shim.
func (e *editor) useShim(f File, s Settings, r *Result) error {
	if s.AddHandler != "" {
		s.Handlers = append(slices.Clone(s.Handlers), s.AddHandler)
	}
	if s.AddHandler != "" && !slices.ContainsFunc(f.Handlers, named(s.AddHandler)) {
		e.writeBuiltins(f, s)
		e.addHandler(f, s)
		added, err := e.doc.read(s.Target)
		if err = cmp.Or(e.err, err); err != nil {
			return err
		}
		f = added
	}
	chosen, warnings, err := choose(f, s)
	if err != nil {
		return err
	}
	r.Warnings = append(r.Warnings, warnings...)
	e.writeBuiltins(f, s)
	for _, h := range chosen {
		e.setShim(h, s)
		r.Handlers = append(r.Handlers, h.Name)
	}
	if s.OS == "linux" && s.merges(f.Version) {
		r.Warnings = append(r.Warnings, notForPods)
	}
	return e.err
}

func (e *editor) has(path []string) bool { return lookup(e.doc.values, path...) != nil }

// setShim makes a handler use the shim, and pass on our annotations.
func (e *editor) setShim(h Handler, s Settings) {
	if h.values["runtime_type"] == nil || !h.InFile && !e.has(h.path) {
		kind := cmp.Or(h.RuntimeType, get[string](builtins(s.OS), h.Name, "runtime_type"))
		if kind == "" {
			e.fail("handler %s has no runtime_type: set it in the file", h.Name)
		}
		e.set(h.path, "runtime_type", kind)
	}
	if h.RuntimePath != s.Shim {
		e.set(h.path, "runtime_path", s.Shim)
	}
	e.includePattern(h.path, "pod_annotations", h.PodAnnotations)
	e.includePattern(h.path, "container_annotations", h.ContainerAnnotations)
}

func named(name string) func(Handler) bool { return func(h Handler) bool { return h.Name == name } }

// checkShim returns nil if our shim can replace that of the handler: it runs the same one.
func (s Settings) checkShim(h Handler) error {
	same := h.RuntimePath == s.RealShim || s.OS == "windows" && winpath.Equal(h.RuntimePath, s.RealShim)
	if h.RuntimePath == "" || h.Ours() || same {
		return nil
	}
	return fmt.Errorf("runtime handler %s has runtime_path %s, which is not the shim that ours runs (shim.runtime)", h.Name, h.RuntimePath)
}

// choose returns the handlers that will use the shim, and warnings about others.
func choose(f File, s Settings) (chosen []Handler, warnings []string, err error) {
	for _, name := range s.Handlers {
		if !slices.ContainsFunc(f.Handlers, named(name)) {
			return nil, nil, fmt.Errorf("there is no runtime handler %q among %s", name, names(f.Handlers))
		}
	}
	for _, h := range f.Handlers {
		eligible, shim := h.CheckEligible(s.OS), s.checkShim(h)
		switch isNamed := slices.Contains(s.Handlers, h.Name); {
		case len(s.Handlers) > 0 && !isNamed:
		case isNamed && eligible != nil && h.RuntimeType != "":
			return nil, nil, fmt.Errorf("its containers cannot have GPUs: %w", eligible)
		case isNamed && shim != nil:
			warnings = append(warnings, fmt.Sprintf("%v: it is replaced", shim))
			chosen = append(chosen, h)
		case isNamed || eligible == nil && shim == nil:
			chosen = append(chosen, h)
		case eligible == nil:
			warnings = append(warnings, fmt.Sprintf("%v: it is left unchanged; --handler %s replaces it", shim, h.Name))
		case h.Sandboxer != "":
			warnings = append(warnings, fmt.Sprintf("%v: it is left unchanged", eligible))
		}
	}
	if len(chosen) == 0 {
		err = fmt.Errorf("no runtime handler can have GPUs: %s", cmp.Or(strings.Join(warnings, ", "), whyNone(f.Handlers, s.OS)))
	}
	return chosen, warnings, err
}

func names(handlers []Handler) string {
	var all []string
	for _, h := range handlers {
		all = append(all, h.Name)
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}

// whyNone returns why none of the handlers can have GPUs.
func whyNone(handlers []Handler, os string) string {
	var reasons []string
	for _, h := range handlers {
		if err := h.CheckEligible(os); err != nil {
			reasons = append(reasons, err.Error())
		}
	}
	return cmp.Or(strings.Join(reasons, ", "), "containerd has none")
}

// writeBuiltins writes the built-in handlers to the file if containerd would otherwise
// lose them when the file names one.
func (e *editor) writeBuiltins(f File, s Settings) {
	inFile := func(h Handler) bool { return h.InFile && h.path[len(h.path)-2] == "runtimes" }
	if s.merges(f.Version) || slices.ContainsFunc(f.Handlers, inFile) {
		return
	}
	for _, h := range f.Handlers {
		if !h.InFile && !e.has(h.path) {
			e.setAll(h.path, h.values)
		}
	}
}

// addHandler adds a copy of the default handler.
func (e *editor) addHandler(f File, s Settings) {
	i := slices.IndexFunc(f.Handlers, func(h Handler) bool { return h.Name == f.defaultHandler && h.CheckEligible(s.OS) == nil })
	if i < 0 {
		i = slices.IndexFunc(f.Handlers, func(h Handler) bool { return h.CheckEligible(s.OS) == nil })
	}
	if i < 0 {
		e.fail("the runtime handler %s cannot be added, because no runtime handler can have GPUs: %s", s.AddHandler, whyNone(f.Handlers, s.OS))
		return
	}
	e.setAll([]string{"plugins", criPlugin(f.Version), "containerd", "runtimes", s.AddHandler}, f.Handlers[i].values)
}

// setAll writes a table.
func (e *editor) setAll(table []string, values map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		e.set(table, name, values[name])
	}
}

// Remove removes our shim's runtime_path and our annotation patterns from text, without
// a record of the changes. Notes describe what may differ from the original.
func Remove(text []byte, target Target) (result []byte, notes []string, err error) {
	e, err := newEditor(text)
	if err != nil {
		return nil, nil, err
	}
	f, err := e.doc.read(target)
	if err != nil {
		return nil, nil, err
	}
	for _, h := range f.Handlers {
		if !h.Ours() {
			continue
		}
		for _, name := range []string{"runtime_path", "pod_annotations", "container_annotations"} {
			edit := Edit{Path: append(slices.Clone(h.path), name)}
			entry := e.doc.entry(edit.Path)
			switch {
			case entry == nil && e.has(edit.Path):
				e.fail("%s cannot be removed from within a line: do it by hand", dotted(edit.Path))
			case entry != nil && (entry.kind != unstable.Array || slices.Equal(entry.strings, []string{AnnotationPattern})):
				edit.New = e.doc.raw(entry) // All of it is ours.
			}
			e.undo(edit)
		}
		e.note("handler %s is kept; a runtime_path that it had before is unknown", h.Name)
	}
	if len(e.notes) > 0 && f.NRI && !target.merges(f.Version) {
		e.note("NRI stays enabled: whether it was enabled before is unknown")
	}
	return e.doc.bytes(e.doc.text), e.notes, e.err
}
