package ocispec

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ErrSpec means that data is not an OCI runtime spec.
var ErrSpec = errors.New("not an OCI runtime spec that can be edited")

// Spec is a parsed OCI runtime spec.
type Spec struct {
	data []byte
	root *object
}

// ParseSpec parses a spec. Its error matches [ErrSpec].
func ParseSpec(data []byte) (Spec, error) {
	root, err := parseObject(data)
	if err != nil {
		return Spec{}, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	return Spec{data: data, root: root}, nil
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

// Facts returns the facts. Its error matches [ErrSpec].
func (s Spec) Facts() (Facts, error) {
	f, err := s.facts()
	if err != nil {
		return Facts{}, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	return f, nil
}

func (s Spec) facts() (f Facts, err error) {
	if f.OS, err = containerOS(s.root); err != nil {
		return Facts{}, err
	}
	process, err := s.root.child("process")
	if err != nil {
		return Facts{}, err
	}
	windows, err := s.root.child("windows")
	if err != nil {
		return Facts{}, err
	}
	if f.Windows, err = s.root.has("windows"); err != nil {
		return Facts{}, err
	}
	if f.HyperV, err = windows.has("hyperv"); err != nil {
		return Facts{}, wrap("windows", err)
	}
	if f.Env, err = process.texts("env"); err != nil {
		return Facts{}, wrap("process", err)
	}
	return f, errors.Join(
		s.root.get("annotations", &f.Annotations),
		wrap("windows", windows.get("devices", &f.Devices)))
}

// Apply returns the spec with edits applied. Everything else stays as it is,
// unknown fields included, and the spec's own mounts win. When there is nothing
// to change, the result is the data that the spec was parsed from and changed is
// false. Errors match [ErrSpec]; the spec must not be used after one.
func (s Spec) Apply(edits Edits) (data []byte, changed bool, err error) {
	for _, apply := range []func(*object, Edits) (bool, error){
		applyEnv, applyWindowsDevices, applyLinuxDevices, applyMounts,
	} {
		did, err := apply(s.root, edits)
		if err != nil {
			return nil, false, fmt.Errorf("%w: %w", ErrSpec, err)
		}
		changed = changed || did
	}
	if !changed {
		return s.data, false, nil
	}
	return s.root.bytes(), true, nil
}

func applyEnv(root *object, edits Edits) (bool, error) {
	if len(edits.Env) == 0 {
		return false, nil
	}
	process, err := root.child("process")
	if err != nil {
		return false, err
	}
	env, err := process.list("env")
	if err != nil {
		return false, wrap("process", err)
	}
	env, changed, err := overrideEnv(env, edits.Env)
	if err != nil || !changed {
		return false, wrap("process: env", err)
	}
	return true, errors.Join(process.set("env", json.RawMessage(env)), root.set("process", process))
}

// overrideEnv returns the JSON array env in which variables, NAME=value, replace
// those of the same names. The environment is most of a spec: other variables
// are copied as they are.
func overrideEnv(env []byte, variables []string) (edited []byte, changed bool, err error) {
	type entry struct {
		begin    int
		variable string
	}
	var same []entry // with the same names
	err = eachElement(env, func(begin, end int) error {
		variable, err := text(env[begin:end])
		if err == nil && hasNameOf(variables, variable) {
			same = append(same, entry{begin, string(variable)})
		}
		return err
	})
	if err != nil {
		return nil, false, err
	}
	var missing []string
	var added [][]byte
	for i, variable := range variables {
		// The last one of a name wins.
		if hasNameOf(variables[i+1:], []byte(variable)) || slices.ContainsFunc(same, func(e entry) bool { return e.variable == variable }) {
			continue
		}
		raw, err := marshal(variable)
		if err != nil {
			return nil, false, err
		}
		missing, added = append(missing, variable), append(added, raw)
	}
	if len(missing) == 0 {
		return env, false, nil
	}
	replaced := slices.DeleteFunc(same, func(e entry) bool { return !hasNameOf(missing, []byte(e.variable)) })
	if len(replaced) == 0 {
		return appended(env, added...), true, nil
	}
	var kept [][]byte
	err = eachElement(env, func(begin, end int) error {
		if !slices.ContainsFunc(replaced, func(e entry) bool { return e.begin == begin }) {
			kept = append(kept, env[begin:end])
		}
		return nil
	})
	return appended([]byte("[]"), append(kept, added...)...), true, err
}

// hasNameOf reports whether one of variables has the same name as variable.
func hasNameOf(variables []string, variable []byte) bool {
	return slices.ContainsFunc(variables, func(v string) bool {
		name := strings.IndexByte(v, '=') + 1
		return len(variable) >= name && string(variable[:name]) == v[:name]
	})
}

func applyWindowsDevices(root *object, edits Edits) (bool, error) {
	if len(edits.WindowsDevices)+len(edits.RemoveWindowsDevices) == 0 {
		return false, nil
	}
	windows, err := root.child("windows")
	if err != nil {
		return false, err
	}
	var removed []specs.WindowsDevice
	for _, d := range edits.RemoveWindowsDevices {
		removed = append(removed, windowsDeviceKey(d))
	}
	changed, err := update(windows, "devices", removed, edits.WindowsDevices, windowsDeviceKey)
	if err != nil || !changed {
		return false, wrap("windows", err)
	}
	return true, root.set("windows", windows)
}

// windowsDeviceKey returns the same value for all spellings of a device.
func windowsDeviceKey(d specs.WindowsDevice) specs.WindowsDevice {
	if d.IDType == IDTypeClassGUID {
		d.IDType = IDTypeClass
	}
	return specs.WindowsDevice{ID: strings.ToLower(strings.Trim(d.ID, "{}")), IDType: d.IDType}
}

func applyLinuxDevices(root *object, edits Edits) (bool, error) {
	if len(edits.LinuxDevices) == 0 {
		return false, nil
	}
	var rules []specs.LinuxDeviceCgroup
	for _, d := range edits.LinuxDevices {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: &d.Major, Minor: &d.Minor, Access: access(d)})
	}
	linux, err := root.child("linux")
	if err != nil {
		return false, err
	}
	resources, err := linux.child("resources")
	if err != nil {
		return false, wrap("linux", err)
	}
	changedNodes, err := update(linux, "devices", nil, edits.LinuxDevices, func(d specs.LinuxDevice) string { return d.Path })
	if err != nil {
		return false, wrap("linux", err)
	}
	changedRules, err := update(resources, "devices", nil, rules, deviceRuleKey)
	if err != nil {
		return false, wrap("linux: resources", err)
	}
	if changedRules {
		if err := linux.set("resources", resources); err != nil {
			return false, wrap("linux", err)
		}
	}
	if !changedNodes && !changedRules {
		return false, nil
	}
	return true, root.set("linux", linux)
}

// access returns the access to a device that NRI's generator grants, so that a
// spec which NRI has adjusted is not changed again.
func access(d specs.LinuxDevice) string {
	if d.Type == "b" {
		return "rwm"
	}
	return "rw"
}

// deviceRule is a comparable [specs.LinuxDeviceCgroup].
type deviceRule struct {
	allow              bool
	kind, access       string
	hasMajor, hasMinor bool
	major, minor       int64
}

func deviceRuleKey(rule specs.LinuxDeviceCgroup) deviceRule {
	key := deviceRule{allow: rule.Allow, kind: rule.Type, access: rule.Access}
	if rule.Major != nil {
		key.hasMajor, key.major = true, *rule.Major
	}
	if rule.Minor != nil {
		key.hasMinor, key.minor = true, *rule.Minor
	}
	return key
}

func applyMounts(root *object, edits Edits) (bool, error) {
	if len(edits.Mounts)+len(edits.RemoveMounts) == 0 {
		return false, nil
	}
	os, err := containerOS(root)
	if err != nil {
		return false, err
	}
	var removed []string
	for _, destination := range edits.RemoveMounts {
		removed = append(removed, DestinationKey(os, destination))
	}
	return update(root, "mounts", removed, edits.Mounts, func(m specs.Mount) string { return DestinationKey(os, m.Destination) })
}

// containerOS returns the operating system of the container.
func containerOS(root *object) (OS, error) {
	linux, err := root.has("linux")
	if err != nil {
		return "", err
	}
	windows, err := root.has("windows")
	if err != nil {
		return "", err
	}
	if windows && !linux {
		return Windows, nil
	}
	return Linux, nil
}

// update removes the entries of the list at key whose keys are in remove, then
// appends those of add whose keys no entry has. It reports whether the list
// changed.
func update[T any, K comparable](o *object, key string, remove []K, add []T, keyOf func(T) K) (bool, error) {
	list, err := o.list(key)
	if err != nil {
		return false, err
	}
	var known []K
	var kept [][]byte
	count := 0
	err = eachElement(list, func(begin, end int) error {
		var entry T
		if err := json.Unmarshal(list[begin:end], &entry); err != nil {
			return fmt.Errorf("%s[%d]: %w", key, count, err)
		}
		count++
		if k := keyOf(entry); !slices.Contains(remove, k) {
			known, kept = append(known, k), append(kept, list[begin:end])
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	var added [][]byte
	for _, entry := range add {
		k := keyOf(entry)
		if slices.Contains(known, k) {
			continue
		}
		raw, err := marshal(entry)
		if err != nil {
			return false, fmt.Errorf("%s: %w", key, err)
		}
		known, added = append(known, k), append(added, raw)
	}
	if len(kept) == count && len(added) == 0 {
		return false, nil
	}
	return true, o.set(key, json.RawMessage(appended([]byte("[]"), append(kept, added...)...)))
}

func wrap(where string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", where, err)
}
