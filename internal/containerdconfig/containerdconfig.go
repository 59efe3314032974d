// Package containerdconfig reads and edits containerd's config.toml: which CRI runtime handlers use
// the runtime shim, which annotations they pass on, and whether NRI is enabled.
//
// How containerd reads the file (observed with containerd 1.7.35 and 2.4.2):
//
//   - All releases read versions 1 and 2; 2.x converts the file at each start.
//     Version 3 is for 2.x, version 4 for newer 2.x. A file without a version has
//     version 1, in which plugins have short names; AKS has such files on Windows
//     nodes with containerd 1.7.
//   - 1.x replaces its built-in runtime handlers with those of the file, so if a file
//     for 1.x has none, the built-in ones must be written out.
//   - 2.x merges the file's handlers into the built-in ones by key; lists are
//     replaced.
//   - NRI is disabled by default in 1.7, and enabled in 2.x.
//   - An imported file takes precedence over the one that imports it. 1.x replaces a
//     plugin's whole section, 2.x merges.
//   - Annotation patterns are matched with path.Match, also on Windows: "*" does not
//     match "/".
//
// https://github.com/containerd/containerd/blob/v1.7.35/services/server/config/config.go,
// https://github.com/containerd/containerd/blob/v2.4.2/cmd/containerd/server/config/config.go
package containerdconfig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/tomledit"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/shim/realshim"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// AnnotationPattern matches the annotations of directx-nri, which a runtime handler must
// pass on to the shim.
const AnnotationPattern = "directx.microsoft.com/*"

const (
	runhcsType = "io.containerd.runhcs.v1"
	runcType   = "io.containerd.runc.v2"
	podSandbox = "podsandbox" // the default sandboxer

	// newFileVersion is the version of a new file, which all releases read.
	newFileVersion = 2
	maxVersion     = 4
)

// criPlugin returns the name of the plugin that has the runtime handlers in a file of this version.
func criPlugin(version int) string {
	switch version {
	case 1:
		return "cri"
	case 2:
		return "io.containerd.grpc.v1.cri"
	}
	return "io.containerd.cri.v1.runtime"
}

// nriPlugin returns the name of the NRI plugin in a file of this version.
func nriPlugin(version int) string {
	if version == 1 {
		return "nri"
	}
	return "io.containerd.nri.v1.nri"
}

// Release identifies the containerd that reads a configuration.
type Release struct {
	// OS is the node's operating system: "windows" or "linux".
	OS string
	// Major is containerd's major version, 0 if it is unknown. In that case, files of
	// version 1 and 2 are assumed to be for 1.x.
	Major int
}

// merges reports whether containerd merges a file of this version into its built-in configuration.
func (r Release) merges(version int) bool { return version > 2 || r.Major >= 2 }

// Handler is a CRI runtime handler of containerd. Where containerd 2 has a field in its CRI status, the
// tag is its name there.
type Handler struct {
	Name string `json:"name"`
	// InFile reports whether the file has the handler. Other handlers are built in.
	InFile      bool   `json:"inFile"`
	RuntimeType string `json:"runtimeType"`
	RuntimePath string `json:"runtimePath,omitempty"`
	// SandboxIsolation is an option of runhcs: 0 for process isolation, 1 for Hyper-V.
	SandboxIsolation int64 `json:"sandboxIsolation,omitempty"`
	// BinaryName is an option of runc's shim: the program that it runs in place of runc.
	BinaryName string `json:"binaryName,omitempty"`
	// Sandboxer is sandboxer of containerd 2.x or sandbox_mode of 1.7, "" for the default.
	Sandboxer            string   `json:"sandboxer,omitempty"`
	PodAnnotations       []string `json:"podAnnotations,omitempty"`
	ContainerAnnotations []string `json:"containerAnnotations,omitempty"`

	path   []string       // of its table
	values map[string]any // of the file, merged into the built-in values
}

// UsesShim reports whether runtime_path, or without one runtime_type, names the runtime shim.
func (h Handler) UsesShim() bool {
	return shimfile.IsShim(h.RuntimePath) || h.RuntimePath == "" && h.RuntimeType == shimfile.RuntimeName
}

// RuntimeType returns the runtime_type of handlers that can have GPUs.
func RuntimeType(nodeOS string) string {
	if nodeOS == "windows" {
		return runhcsType
	}
	return runcType
}

// CheckEligible returns nil if containers of the handler can have GPUs: on Windows those
// of runhcs with process isolation, on Linux those of runc, or of a program in place of runc
// that starts containers in the node's kernel. With a sandboxer other than podsandbox, the
// sandboxer starts a pod's containers, and containerd runs no shim binary.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/config/config.go,
// https://github.com/containerd/containerd/blob/v1.7.35/pkg/cri/config/config.go
func (h Handler) CheckEligible(nodeOS string) error {
	runtimeType := RuntimeType(nodeOS)
	switch {
	case h.RuntimeType != runtimeType && (h.RuntimeType != shimfile.RuntimeName || !h.UsesShim()):
		return fmt.Errorf("runtime handler %s has runtime_type %q, not %s", h.Name, h.RuntimeType, runtimeType)
	case nodeOS == "windows" && h.SandboxIsolation != 0:
		return fmt.Errorf("runtime handler %s has Hyper-V isolation", h.Name)
	case h.hasOtherSandboxer():
		return fmt.Errorf("runtime handler %s has the sandboxer %s, not %s", h.Name, h.Sandboxer, podSandbox)
	}
	for _, program := range []string{h.BinaryName, h.RuntimePath} {
		if realshim.HasOwnKernel(program) {
			return fmt.Errorf("runtime handler %s runs %s, whose containers have their own kernel", h.Name, program)
		}
	}
	return nil
}

// Eligible returns the handlers whose containers can have GPUs.
func Eligible(handlers []Handler, nodeOS string) []Handler {
	return slices.DeleteFunc(slices.Clone(handlers), func(h Handler) bool { return h.CheckEligible(nodeOS) != nil })
}

func (h Handler) hasOtherSandboxer() bool { return h.Sandboxer != "" && h.Sandboxer != podSandbox }

// IgnoresDevices reports whether the handler's containers would start without their GPUs, in spite of
// the interlock. hcsshim's draft of containerd-shim-wcowprocess-v2, announced as
// containerd-shim-process-v2, ignores the devices of a Windows container. A program in place of runc
// whose containers have their own kernel sees no interlock, because the runtime shim has removed it.
// https://github.com/microsoft/hcsshim/tree/process-v2-shim/cmd/containerd-shim-wcowprocess-v2
func (h Handler) IgnoresDevices() bool {
	shim := strings.ReplaceAll(winpath.Base(cmp.Or(h.RuntimePath, h.RuntimeType)), ".", "-")
	return strings.Contains(strings.ToLower(shim), "process-v2") || h.UsesShim() && realshim.HasOwnKernel(h.BinaryName)
}

// PassesAnnotations reports whether the handler passes on the annotations of directx-nri.
func (h Handler) PassesAnnotations() bool {
	return matchesAnnotations(h.PodAnnotations) && matchesAnnotations(h.ContainerAnnotations)
}

// matchesAnnotations reports whether one of the patterns matches all annotations of directx-nri.
func matchesAnnotations(patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matches, err := path.Match(pattern, strings.TrimSuffix(AnnotationPattern, "*")+"allocation.display")
		return err == nil && matches && strings.HasSuffix(pattern, "*")
	})
}

// Config has the settings of a configuration that are relevant to directx-nri.
type Config struct {
	// Version of the format, 0 if the file has no setting.
	Version int
	// Handlers are sorted by name.
	Handlers []Handler
	// NRI reports whether NRI is enabled.
	NRI bool
	// Imports are the names and patterns of imported files.
	Imports []string

	defaultHandler string
}

// parse parses a configuration. Syntax errors are a [tomledit.SyntaxError].
func parse(text []byte) (*tomledit.Document, error) {
	d, err := tomledit.Parse(text)
	if err != nil && bytes.Contains(text, []byte("{{")) {
		err = errlog.WithRemedy(err, "a template with actions cannot be edited: copy containerd's config.toml, which k3s makes of it, to the template")
	}
	return d, err
}

// Read parses a configuration. Syntax errors are a [tomledit.SyntaxError].
func Read(text []byte, release Release) (Config, error) {
	d, err := parse(text)
	if err != nil {
		return Config{}, err
	}
	return read(d, release)
}

func read(d *tomledit.Document, release Release) (Config, error) {
	version, err := readVersion(d)
	if err == nil && d.HasBOM && release.merges(version) { // 1.x skips it.
		err = errBOM
	}
	if err != nil {
		return Config{}, err
	}
	c := Config{Version: version, NRI: release.merges(version), Imports: tomledit.Strings(d.Values, "imports")}
	if disable := tomledit.Lookup(d.Values, "plugins", nriPlugin(version), "disable"); disable != nil {
		c.NRI = disable == false
	}
	c.NRI = c.NRI && !disables(d, nriPlugin(version))
	name := tomledit.Get[string](d.Values, "plugins", criPlugin(version), "containerd", "default_runtime_name")
	c.defaultHandler = cmp.Or(name, defaultHandler(release.OS))
	c.Handlers, err = readHandlers(d, version, release)
	return c, err
}

var errBOM = errors.New("1:1: the file begins with a byte order mark, with which containerd 2 does not start: save it as UTF-8 without one")

// readVersion returns the version of the format, 0 if the file has no setting.
func readVersion(d *tomledit.Document) (int, error) {
	if len(d.Values) == 0 {
		return 0, nil
	}
	value, ok := d.Values["version"]
	if !ok {
		return 1, nil
	}
	n, isInt := value.(int64)
	switch {
	case !isInt || n < 0:
		return 0, fmt.Errorf("unsupported version %v of the configuration", value)
	case n == 0:
		return 1, nil
	case n > maxVersion:
		return 0, fmt.Errorf("unsupported version of the configuration: version %d is newer than this program, which supports up to %d", n, maxVersion)
	}
	return int(n), nil
}

func disables(d *tomledit.Document, plugin string) bool {
	return slices.Contains(tomledit.Strings(d.Values, "disabled_plugins"), plugin)
}

func readHandlers(d *tomledit.Document, version int, release Release) ([]Handler, error) {
	containerd := []string{"plugins", criPlugin(version), "containerd"}
	runtimes := append(slices.Clone(containerd), "runtimes")
	value := tomledit.Lookup(d.Values, runtimes...)
	inFile, isTable := value.(map[string]any)
	if value != nil && !isTable {
		return nil, fmt.Errorf("%s is not a table", tomledit.Key(runtimes))
	}
	tables := inFile
	if len(inFile) == 0 || release.merges(version) {
		tables = mergeTables(builtinHandlers(release.OS), inFile)
	}
	var list []Handler
	for name, value := range tables {
		values, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s is not a table", tomledit.Key(append(slices.Clone(runtimes), name)))
		}
		h := newHandler(name, runtimes, values)
		_, h.InFile = inFile[name]
		list = append(list, h)
	}
	// These deprecated tables of 1.x define handlers.
	for table, name := range map[string]string{"default_runtime": "default", "untrusted_workload_runtime": "untrusted"} {
		old := tomledit.Get[map[string]any](d.Values, append(slices.Clone(containerd), table)...)
		if release.merges(version) || tomledit.Get[string](old, "runtime_type") == "" {
			continue
		}
		h := newHandler(name, containerd, old)
		h.InFile = true
		h.path[len(h.path)-1] = table
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b Handler) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func newHandler(name string, runtimes []string, values map[string]any) Handler {
	return Handler{
		Name: name, path: append(slices.Clone(runtimes), name), values: values,
		RuntimeType: tomledit.Get[string](values, "runtime_type"), RuntimePath: tomledit.Get[string](values, "runtime_path"),
		PodAnnotations:       tomledit.Strings(values, "pod_annotations"),
		ContainerAnnotations: tomledit.Strings(values, "container_annotations"),
		SandboxIsolation:     tomledit.Get[int64](values, "options", "SandboxIsolation"),
		BinaryName:           tomledit.Get[string](values, "options", "BinaryName"),
		Sandboxer:            cmp.Or(tomledit.Get[string](values, "sandboxer"), tomledit.Get[string](values, "sandbox_mode")),
	}
}

// mergeTables returns lower with the values of upper, table by table.
func mergeTables(lower, upper map[string]any) map[string]any {
	merged := maps.Clone(lower)
	for key, value := range upper {
		below, belowIsTable := merged[key].(map[string]any)
		above, aboveIsTable := value.(map[string]any)
		if belowIsTable && aboveIsTable {
			value = mergeTables(below, above)
		}
		merged[key] = value
	}
	return merged
}

func defaultHandler(nodeOS string) string {
	if nodeOS == "windows" {
		return "runhcs-wcow-process"
	}
	return "runc"
}

// builtinHandlers returns containerd's built-in handlers, from DefaultConfig of 1.7.35 and
// DefaultRuntimeConfig of 2.4.2, without empty options.
func builtinHandlers(nodeOS string) map[string]any {
	if nodeOS != "windows" {
		return map[string]any{"runc": map[string]any{"runtime_type": runcType}}
	}
	return map[string]any{
		"runhcs-wcow-process": map[string]any{
			"runtime_type":          runhcsType,
			"container_annotations": []any{"io.microsoft.container.*"},
			"options":               map[string]any{"ScrubLogs": true},
		},
		"runhcs-wcow-hypervisor": map[string]any{
			"runtime_type":          runhcsType,
			"pod_annotations":       []any{"io.microsoft.virtualmachine.*"},
			"container_annotations": []any{"io.microsoft.container.*"},
			"options":               map[string]any{"SandboxIsolation": int64(1), "ScaleCpuLimitsToSandbox": true, "ScrubLogs": true},
		},
	}
}

// Overrides returns the keys and tables of an imported file that override the handlers with the shim and
// the NRI plugin in c, as TOML keys, and the files that the imported file imports in turn. It sets c.NRI if
// the file enables NRI.
func Overrides(imported []byte, c *Config, release Release) (keys, imports []string, err error) {
	d, err := parse(imported)
	if err == nil && d.HasBOM && release.merges(c.Version) {
		err = errBOM
	}
	if err != nil {
		return nil, nil, err
	}
	add := func(path ...string) {
		if tomledit.Lookup(d.Values, path...) != nil {
			keys = append(keys, tomledit.Key(path))
		}
	}
	merges := release.merges(c.Version)
	for version := 1; version <= 3; version++ { // containerd converts an imported file of another version.
		cri, nri := criPlugin(version), nriPlugin(version)
		disable, isSet := tomledit.Lookup(d.Values, "plugins", nri, "disable").(bool)
		switch {
		case release.OS == "windows": // containerd has no NRI there.
		case disables(d, nri):
			add("disabled_plugins")
		case isSet && !disable && nri == nriPlugin(c.Version):
			c.NRI = true
		case !merges:
			add("plugins", nri)
		case disable:
			add("plugins", nri, "disable")
		}
		for _, h := range c.Handlers {
			switch {
			case !h.UsesShim():
			case disables(d, cri):
				add("disabled_plugins")
			case !merges:
				add("plugins", cri)
			default:
				for _, key := range []string{"runtime_type", "runtime_path", "pod_annotations", "container_annotations", "sandboxer"} {
					add("plugins", cri, "containerd", "runtimes", h.Name, key)
				}
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), tomledit.Strings(d.Values, "imports"), nil
}
