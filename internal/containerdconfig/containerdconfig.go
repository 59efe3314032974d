// Package containerdconfig reads and edits containerd's config.toml: which CRI
// runtime handlers go through our shim, what annotations they pass on, and
// whether NRI is on. All of it is text in, text out; comments, order, line ends
// and formatting stay.
//
// How containerd reads the file decides what has to be written (all of it seen
// by running containerd 1.7.35 and 2.4.2):
//
//   - Versions 1 and 2 are read by all of them; 2.x converts the file at each
//     start. Version 3 is for 2.x, version 4 for the newer ones of those. A file
//     without a version is version 1, where plugins have short names; AKS has
//     such files on its Windows nodes with containerd 1.7.
//   - 1.x replaces its built-in map of runtime handlers by the file's: once a
//     file names one handler, those that it does not name are gone, and the one
//     that it names has nothing but what stands there. So where a file for 1.x
//     names none, all of the built-in ones are written out.
//   - 2.x lays the file's handlers over the built-in ones, key by key; lists are
//     replaced.
//   - NRI is off by default in 1.7, and on in 2.x.
//   - An imported file comes after the one that imports it. 1.x replaces a
//     plugin's whole section by it, 2.x merges.
//   - Annotation patterns are matched with path.Match, on Windows too: "*" does
//     not match "/", and an annotation of ours has one "/", in the pattern
//     itself.
//
// https://github.com/containerd/containerd/blob/v1.7.35/services/server/config/config.go,
// https://github.com/containerd/containerd/blob/v2.4.2/cmd/containerd/server/config/config.go
package containerdconfig

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"directx-nri/internal/shimfile"
)

// AnnotationPattern matches the annotations of ours that a runtime handler has
// to hand on to the shim.
const AnnotationPattern = "directx.microsoft.com/*"

const (
	runhcsType = "io.containerd.runhcs.v1"
	runcType   = "io.containerd.runc.v2"

	// begunVersion is that of a file that we begin: every containerd reads it.
	begunVersion = 2
	maxVersion   = 4
)

// criPlugin returns the plugin that has the runtime handlers in a file of this
// version.
func criPlugin(version int) string {
	switch version {
	case 1:
		return "cri"
	case 2:
		return "io.containerd.grpc.v1.cri"
	}
	return "io.containerd.cri.v1.runtime"
}

// nriPlugin returns the plugin that NRI is, in a file of this version.
func nriPlugin(version int) string {
	if version == 1 {
		return "nri"
	}
	return "io.containerd.nri.v1.nri"
}

// ErrVersion is the error of a file with an unsupported version.
var ErrVersion = errors.New("unsupported version of containerd's configuration")

// Node is what decides how containerd reads a file, beside the file itself.
type Node struct {
	// OS is the node's operating system: "windows" or "linux".
	OS string
	// Major is containerd's major version, 0 when it is not known: then a file
	// of version 1 or 2 is taken to be for 1.x.
	Major int
}

// merges reports whether containerd lays a file of this version over its built-in
// handlers.
func (n Node) merges(version int) bool { return version > 2 || n.Major >= 2 }

// Handler is a CRI runtime handler as containerd has it after reading a file.
type Handler struct {
	Name string `json:"name"`
	// InFile reports whether the file has it; others are built into containerd.
	InFile bool `json:"inFile"`
	// RuntimeType and RuntimePath are the settings of those names.
	RuntimeType string `json:"runtimeType"`
	RuntimePath string `json:"runtimePath,omitempty"`
	// SandboxIsolation is that option of runhcs: 0 for process isolation, 1 for
	// Hyper-V isolation.
	SandboxIsolation     int64    `json:"sandboxIsolation,omitempty"`
	PodAnnotations       []string `json:"podAnnotations,omitempty"`
	ContainerAnnotations []string `json:"containerAnnotations,omitempty"`

	path   []string       // its table
	values map[string]any // what stands there, over what is built in
}

// Ours reports whether the handler uses our shim.
func (h Handler) Ours() bool { return shimfile.IsShim(h.RuntimePath) }

// Eligible reports whether containers of this handler can have a GPU by our shim:
// on Windows those of runhcs with process isolation, on Linux those of runc.
func (h Handler) Eligible(os string) bool {
	if os == "windows" {
		return h.RuntimeType == runhcsType && h.SandboxIsolation == 0
	}
	return h.RuntimeType == runcType
}

// PassesAnnotations reports whether the handler passes on our annotations of pods
// and of containers.
func (h Handler) PassesAnnotations() bool {
	return passes(h.PodAnnotations) && passes(h.ContainerAnnotations)
}

// passes reports whether one of the patterns matches all annotations of ours, as
// containerd matches them.
func passes(patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matches, err := path.Match(pattern, strings.TrimSuffix(AnnotationPattern, "*")+"allocation.display")
		return err == nil && matches && strings.HasSuffix(pattern, "*")
	})
}

// File is what a configuration says about what is ours.
type File struct {
	// Version of the format, 0 when the file has no setting at all.
	Version int
	// Handlers are sorted by name.
	Handlers []Handler
	// NRI reports whether containerd's NRI is on.
	NRI bool
	// Imports are the names and patterns of files that containerd reads after
	// this one.
	Imports []string

	defaultHandler string
}

// Read parses a configuration. An error that is a [*SyntaxError]
// has the place.
func Read(text []byte, node Node) (File, error) {
	d, err := parse(text)
	if err != nil {
		return File{}, err
	}
	return d.read(node)
}

func (d *document) read(node Node) (File, error) {
	version, err := d.version()
	if err != nil {
		return File{}, err
	}
	f := File{Version: version, NRI: node.merges(version)}
	if disable, ok := lookup(d.values, "plugins", nriPlugin(version), "disable"); ok {
		f.NRI = disable == false
	}
	if d.disables(nriPlugin(version)) {
		f.NRI = false
	}
	if list, ok := d.values["imports"].([]any); ok {
		f.Imports = stringsOf(list)
	}
	if name, ok := lookup(d.values, "plugins", criPlugin(version), "containerd", "default_runtime_name"); ok {
		f.defaultHandler, _ = name.(string)
	}
	if f.defaultHandler == "" {
		f.defaultHandler = defaultHandler(node.OS)
	}
	f.Handlers, err = d.handlers(version, node)
	return f, err
}

// version returns that of the file, 0 when nothing is set in it.
func (d *document) version() (int, error) {
	if len(d.values) == 0 {
		return 0, nil
	}
	value, ok := d.values["version"]
	if !ok {
		return 1, nil
	}
	n, isInt := value.(int64)
	switch {
	case !isInt || n < 0:
		return 0, fmt.Errorf("%w: %v is none", ErrVersion, value)
	case n == 0:
		return 1, nil
	case n > maxVersion:
		return 0, fmt.Errorf("%w: version %d is newer than this program, which knows up to %d", ErrVersion, n, maxVersion)
	case n > 2 && d.hasBOM:
		return 0, errors.New("1:1: the file begins with a byte order mark, with which containerd 2 does not start: save it as UTF-8 without one")
	}
	return int(n), nil
}

func (d *document) disables(plugin string) bool {
	list, _ := d.values["disabled_plugins"].([]any)
	return slices.Contains(stringsOf(list), plugin)
}

func (d *document) handlers(version int, node Node) ([]Handler, error) {
	containerd := []string{"plugins", criPlugin(version), "containerd"}
	runtimes := append(slices.Clone(containerd), "runtimes")
	value, _ := lookup(d.values, runtimes...)
	inFile, isTable := value.(map[string]any)
	if value != nil && !isTable {
		return nil, fmt.Errorf("%s is not a table", dotted(runtimes))
	}
	var list []Handler
	for name, builtin := range builtins(node.OS) {
		if _, named := inFile[name]; !named && (len(inFile) == 0 || node.merges(version)) {
			list = append(list, newHandler(name, runtimes, builtin))
		}
	}
	for name, value := range inFile {
		values, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s is not a table", dotted(append(slices.Clone(runtimes), name)))
		}
		if node.merges(version) {
			values = overlay(builtins(node.OS)[name], values)
		}
		h := newHandler(name, runtimes, values)
		h.InFile = true
		list = append(list, h)
	}
	// 1.x takes these two as handlers of another name.
	for table, name := range map[string]string{"default_runtime": "default", "untrusted_workload_runtime": "untrusted"} {
		values, _ := lookup(d.values, append(slices.Clone(containerd), table)...)
		old, ok := values.(map[string]any)
		if !ok || node.merges(version) || old["runtime_type"] == nil || old["runtime_type"] == "" {
			continue
		}
		h := newHandler(name, containerd, old)
		h.InFile, h.path[len(h.path)-1] = true, table
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b Handler) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func newHandler(name string, runtimes []string, values map[string]any) Handler {
	h := Handler{Name: name, path: append(slices.Clone(runtimes), name), values: values}
	h.RuntimeType, _ = values["runtime_type"].(string)
	h.RuntimePath, _ = values["runtime_path"].(string)
	pod, _ := values["pod_annotations"].([]any)
	h.PodAnnotations = stringsOf(pod)
	container, _ := values["container_annotations"].([]any)
	h.ContainerAnnotations = stringsOf(container)
	isolation, _ := lookup(values, "options", "SandboxIsolation")
	h.SandboxIsolation, _ = isolation.(int64)
	return h
}

func stringsOf(list []any) []string {
	var all []string
	for _, item := range list {
		if s, ok := item.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

// overlay returns lower with upper laid over it, tables into tables.
func overlay(lower, upper map[string]any) map[string]any {
	merged := maps.Clone(lower)
	if merged == nil {
		merged = map[string]any{}
	}
	for key, value := range upper {
		below, belowIsTable := merged[key].(map[string]any)
		above, aboveIsTable := value.(map[string]any)
		if belowIsTable && aboveIsTable {
			value = overlay(below, above)
		}
		merged[key] = value
	}
	return merged
}

// defaultHandler returns the one that containerd takes for pods that name none.
func defaultHandler(os string) string {
	if os == "windows" {
		return "runhcs-wcow-process"
	}
	return "runc"
}

// builtins returns the handlers that containerd has without a file, from
// DefaultConfig of 1.7.35 and DefaultRuntimeConfig of 2.4.2, which agree.
// Options of runc with an empty value are left out.
func builtins(os string) map[string]map[string]any {
	if os != "windows" {
		return map[string]map[string]any{"runc": {"runtime_type": runcType}}
	}
	return map[string]map[string]any{
		"runhcs-wcow-process": {
			"runtime_type":          runhcsType,
			"container_annotations": []any{"io.microsoft.container.*"},
			"options":               map[string]any{"ScrubLogs": true},
		},
		"runhcs-wcow-hypervisor": {
			"runtime_type":          runhcsType,
			"pod_annotations":       []any{"io.microsoft.virtualmachine.*"},
			"container_annotations": []any{"io.microsoft.container.*"},
			"options":               map[string]any{"SandboxIsolation": int64(1), "ScaleCpuLimitsToSandbox": true, "ScrubLogs": true},
		},
	}
}

// Overrides returns what of an imported file replaces the content of a
// file of this version that imports it: the tables, as TOML keys. It returns
// none when the imported file leaves alone what we configure.
func Overrides(imported []byte, version int, node Node) ([]string, error) {
	d, err := parse(imported)
	if err != nil {
		return nil, err
	}
	var tables []string
	names := []string{criPlugin(1), criPlugin(2), criPlugin(3), nriPlugin(1), nriPlugin(2)}
	for i, name := range names {
		path := []string{"plugins", name}
		if node.merges(version) && i < 3 {
			path = append(path, "containerd", "runtimes")
		}
		if _, ok := lookup(d.values, path...); ok {
			tables = append(tables, dotted(path))
		}
	}
	return tables, nil
}
