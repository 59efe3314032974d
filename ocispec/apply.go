package ocispec

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/tidwall/gjson"
)

// ErrSpec means that data is not an OCI runtime spec.
var ErrSpec = errors.New("not an OCI runtime spec that can be edited")

// Spec is a parsed OCI runtime spec.
type Spec struct {
	Facts
	data []byte
	root *object
	env  elements[string]
}

// Facts is what a decision needs of a spec.
type Facts struct {
	// OS is the container's operating system. The spec of a Linux container on
	// Windows has the parts of both.
	// https://github.com/opencontainers/runtime-spec/blob/main/config.md#platform-specific-configuration
	OS          OS
	Env         []string
	Annotations map[string]string
	// Devices are the Windows devices.
	Devices []specs.WindowsDevice
	// Windows means that the spec has a Windows part, HyperV that the container has
	// a virtual machine of its own.
	Windows, HyperV bool
}

// ParseSpec parses a spec, which keeps data: it must not be changed. The error matches
// [ErrSpec].
func ParseSpec(data []byte) (Spec, error) {
	s, err := parseSpec(data)
	if err != nil {
		return Spec{}, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	return s, nil
}

func parseSpec(data []byte) (s Spec, err error) {
	if !gjson.ValidBytes(data) {
		return s, errMalformed
	}
	s.data = data
	if s.root, err = parseObject(unsafe.String(unsafe.SliceData(data), len(data))); err != nil {
		return s, err
	}
	linux, err := s.root.has("linux")
	if err != nil {
		return s, err
	}
	if s.Windows, err = s.root.has("windows"); err != nil {
		return s, err
	}
	s.OS = Linux
	if s.Windows && !linux {
		s.OS = Windows
	}
	process, err := s.root.child("process")
	if err != nil {
		return s, err
	}
	windows, err := s.root.child("windows")
	if err != nil {
		return s, err
	}
	if s.HyperV, err = windows.has("hyperv"); err != nil {
		return s, wrap("windows", err)
	}
	if s.env, err = list[string](process, "env"); err != nil {
		return s, wrap("process", err)
	}
	devices, err := list[specs.WindowsDevice](windows, "devices")
	if err != nil {
		return s, wrap("windows", err)
	}
	s.Env, s.Devices = s.env.values, devices.values
	return s, s.root.get("annotations", &s.Annotations)
}

// Apply returns the spec with edits applied. Everything else stays as it is,
// unknown fields included, and the spec's own mounts win. When there is nothing
// to change, the result is the data that the spec was parsed from and changed is
// false. Errors match [ErrSpec]; the spec must not be used after one.
func (s Spec) Apply(edits Edits) (data []byte, changed bool, err error) {
	for _, apply := range []func(Edits) (bool, error){
		s.applyEnv, s.applyWindowsDevices, s.applyLinuxDevices, s.applyMounts,
	} {
		did, err := apply(edits)
		if err != nil {
			return nil, false, fmt.Errorf("%w: %w", ErrSpec, err)
		}
		changed = changed || did
	}
	if !changed {
		return s.data, false, nil
	}
	return s.root.appendTo(make([]byte, 0, len(s.data)+8<<10)), true, nil
}

// applyEnv replaces variables. Those that have their values already stay where they
// are.
func (s Spec) applyEnv(edits Edits) (bool, error) {
	if len(edits.Env) == 0 {
		return false, nil
	}
	var names, variables []string
	for i, variable := range edits.Env {
		name, value, _ := strings.Cut(variable, "=")
		_, replaced := LookupEnv(s.OS, edits.Env[i+1:], name)
		if before, found := LookupEnv(s.OS, s.Env, name); !replaced && (!found || before != value) {
			names, variables = append(names, envName(variable)), append(variables, variable)
		}
	}
	return s.root.edit("process", func(process *object) (bool, error) {
		return merge(process, "env", s.env, names, variables, envName)
	})
}

// envName returns the name of a variable with its "=", "" for what is no variable.
func envName(variable string) string { return variable[:strings.IndexByte(variable, '=')+1] }

func (s Spec) applyWindowsDevices(edits Edits) (bool, error) {
	var removed []specs.WindowsDevice
	for _, d := range edits.RemoveWindowsDevices {
		removed = append(removed, windowsDeviceKey(d))
	}
	return s.root.edit("windows", func(windows *object) (bool, error) {
		return update(windows, "devices", removed, edits.WindowsDevices, windowsDeviceKey)
	})
}

// windowsDeviceKey returns the same value for all spellings of a device.
func windowsDeviceKey(d specs.WindowsDevice) specs.WindowsDevice {
	if d.IDType == IDTypeClassGUID {
		d.IDType = IDTypeClass
	}
	return specs.WindowsDevice{ID: strings.ToLower(strings.Trim(d.ID, "{}")), IDType: d.IDType}
}

func (s Spec) applyLinuxDevices(edits Edits) (bool, error) {
	var added []specs.LinuxDevice
	var rules []specs.LinuxDeviceCgroup
	for _, d := range edits.LinuxDevices {
		added = append(added, d.LinuxDevice)
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: &d.Major, Minor: &d.Minor, Access: Access(d.LinuxDevice)})
	}
	return s.root.edit("linux", func(linux *object) (bool, error) {
		nodes, err := update(linux, "devices", nil, added, func(d specs.LinuxDevice) string { return d.Path })
		if err != nil {
			return false, err
		}
		allowed, err := linux.edit("resources", func(resources *object) (bool, error) {
			return update(resources, "devices", nil, rules, deviceRuleKey)
		})
		return nodes || allowed, err
	})
}

// Access returns the access to a device that NRI's generator grants, so that a
// spec which NRI has adjusted is not changed again.
func Access(d specs.LinuxDevice) string {
	if d.Type == "b" {
		return "rwm"
	}
	return "rw"
}

// deviceRuleKey returns the same text for equal rules.
func deviceRuleKey(rule specs.LinuxDeviceCgroup) string {
	key, _ := json.Marshal(rule) // It has no value that cannot be encoded.
	return string(key)
}

func (s Spec) applyMounts(edits Edits) (bool, error) {
	var removed []string
	for _, destination := range edits.RemoveMounts {
		removed = append(removed, DestinationKey(s.OS, destination))
	}
	var added []mountJSON
	for _, m := range edits.Mounts {
		added = append(added, mountJSON{m.Destination, m.Type, m.Source, m.Options})
	}
	return update(s.root, "mounts", removed, added, func(m mountJSON) string { return DestinationKey(s.OS, m.Destination) })
}

// mountJSON is a [specs.Mount] without the ID mappings, which cost each start time in
// package json.
type mountJSON struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type,omitempty"`
	Source      string   `json:"source,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// update removes the elements of the list at key whose keys are in remove, then
// appends those of add whose keys no element has. It reports whether the list
// changed. With nothing to remove or add it does not read the list.
func update[T any, K comparable](o *object, key string, remove []K, add []T, keyOf func(T) K) (changed bool, err error) {
	if len(remove)+len(add) == 0 {
		return false, nil
	}
	l, err := list[T](o, key)
	if err != nil {
		return false, err
	}
	changed, err = merge(o, key, l, remove, add, keyOf)
	return changed, wrap(key, err)
}

// merge is update for a list that has been read.
func merge[T any, K comparable](o *object, key string, l elements[T], remove []K, add []T, keyOf func(T) K) (changed bool, err error) {
	known, kept := make([]K, 0, len(l.values)+len(add)), make([]string, 0, len(l.values)+len(add))
	for i, value := range l.values {
		if k := keyOf(value); !slices.Contains(remove, k) {
			known, kept = append(known, k), append(kept, l.raw[i])
		}
	}
	changed = len(kept) < len(l.raw)
	for _, value := range add {
		k := keyOf(value)
		if slices.Contains(known, k) {
			continue
		}
		raw, err := marshal(value)
		if err != nil {
			return false, err
		}
		known, kept, changed = append(known, k), append(kept, raw), true
	}
	if !changed {
		return false, nil
	}
	return true, o.set(key, nil, "["+strings.Join(kept, ",")+"]")
}
