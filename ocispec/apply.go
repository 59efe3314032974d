package ocispec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ErrSpec tells a spec that is not an OCI runtime spec.
var ErrSpec = errors.New("it is not an OCI runtime spec that can be edited")

// Spec is the JSON of an OCI runtime spec, read once to be looked at and edited.
type Spec struct {
	data []byte
	root *object
}

// ParseSpec reads data. Its error matches [ErrSpec].
func ParseSpec(data []byte) (Spec, error) {
	err := checkJSON(data)
	if err == nil {
		var root *object
		if root, err = parseObject(data); err == nil {
			return Spec{data: data, root: root}, nil
		}
	}
	return Spec{}, fmt.Errorf("%w: %w", ErrSpec, err)
}

// Facts is what of a spec says who a container is and what it has.
type Facts struct {
	// OS is the container's operating system. A Linux container on Windows has
	// the parts of both.
	// https://github.com/opencontainers/runtime-spec/blob/main/config.md#platform-specific-configuration
	OS          OS
	Env         []string
	Annotations map[string]string
	// Devices are the Windows devices, of either operating system's containers.
	Devices []specs.WindowsDevice
	// Windows tells a spec with a part for Windows, HyperV one for a virtual
	// machine of the container's own.
	Windows, HyperV bool
}

// Facts looks them up. Its error matches [ErrSpec].
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

// Apply returns the spec with edits applied: annotations, environment, mounts,
// Windows devices, and Linux devices with access to them. Everything else stays
// as it is, fields that nobody has heard of included. When there is nothing left
// to do, it is the very data that the spec was read from, and changed is false.
// The spec's own mounts win. An error matches [ErrSpec], and the spec is of no
// use after it.
func (s Spec) Apply(edits Edits) (data []byte, changed bool, err error) {
	for _, edit := range []func(*object, Edits) (bool, error){
		applyAnnotations, applyEnv, applyWindowsDevices, applyLinuxDevices, applyMounts,
	} {
		did, err := edit(s.root, edits)
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

// Apply is [ParseSpec] and [Spec.Apply].
func Apply(spec []byte, edits Edits) ([]byte, error) {
	s, err := ParseSpec(spec)
	if err != nil {
		return nil, err
	}
	data, _, err := s.Apply(edits)
	return data, err
}

func applyAnnotations(root *object, edits Edits) (bool, error) {
	if len(edits.Annotations) == 0 {
		return false, nil
	}
	annotations := map[string]string{}
	if err := root.get("annotations", &annotations); err != nil {
		return false, err
	}
	changed := false
	for key, value := range edits.Annotations {
		if old, ok := annotations[key]; !ok || old != value {
			annotations[key] = value
			changed = true
		}
	}
	if !changed {
		return false, nil
	}
	return true, root.set("annotations", annotations)
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
	env, changed, err := overridden(env, edits.Env)
	if err != nil || !changed {
		return false, wrap("process: env", err)
	}
	if err := process.set("env", json.RawMessage(env)); err != nil {
		return false, wrap("process", err)
	}
	return true, root.set("process", process)
}

// overridden returns the JSON array env with those of variables, NAME=value, that
// it has not at its end, in the place of others of the same name. The variables are
// most of a spec: all others are copied as they stand.
func overridden(env []byte, variables []string) (edited []byte, changed bool, err error) {
	type entry struct {
		begin    int
		variable string
	}
	var have []entry // those of the same names
	for begin, end := range elements(env) {
		variable, err := text(env[begin:end])
		if err != nil {
			return nil, false, err
		}
		if named(variables, variable) {
			have = append(have, entry{begin, string(variable)})
		}
	}
	var missing []string
	var added [][]byte
	for i, variable := range variables {
		// Of several with one name the last counts.
		if named(variables[i+1:], []byte(variable)) || slices.ContainsFunc(have, func(e entry) bool { return e.variable == variable }) {
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
	replaced := slices.DeleteFunc(have, func(e entry) bool { return !named(missing, []byte(e.variable)) })
	if len(replaced) == 0 {
		return appended(env, added...), true, nil
	}
	var kept [][]byte
	for begin, end := range elements(env) {
		if !slices.ContainsFunc(replaced, func(e entry) bool { return e.begin == begin }) {
			kept = append(kept, env[begin:end])
		}
	}
	return appended([]byte("[]"), append(kept, added...)...), true, nil
}

// named tells whether one of variables has the name of variable.
func named(variables []string, variable []byte) bool {
	name, _, set := bytes.Cut(variable, []byte("="))
	return set && slices.ContainsFunc(variables, func(v string) bool {
		n, _, _ := strings.Cut(v, "=")
		return n == string(name)
	})
}

func applyWindowsDevices(root *object, edits Edits) (bool, error) {
	if len(edits.WindowsDevices) == 0 {
		return false, nil
	}
	windows, err := root.child("windows")
	if err != nil {
		return false, err
	}
	changed, err := extend(windows, "devices", edits.WindowsDevices, func(d specs.WindowsDevice) specs.WindowsDevice {
		return specs.WindowsDevice{ID: strings.ToLower(strings.Trim(d.ID, "{}")), IDType: idType(d)}
	})
	if err != nil || !changed {
		return false, wrap("windows", err)
	}
	return true, root.set("windows", windows)
}

// idType returns the type of d's ID, that of the two for a class which the
// specification has.
func idType(d specs.WindowsDevice) string {
	if d.IDType == IDTypeClassGUID {
		return IDTypeClass
	}
	return d.IDType
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
	changedNodes, err := extend(linux, "devices", edits.LinuxDevices, func(d specs.LinuxDevice) string { return d.Path })
	if err != nil {
		return false, wrap("linux", err)
	}
	changedRules, err := extend(resources, "devices", rules, idOf)
	if err != nil {
		return false, wrap("linux: resources", err)
	}
	if !changedNodes && !changedRules {
		return false, nil
	}
	if changedRules {
		if err := linux.set("resources", resources); err != nil {
			return false, wrap("linux", err)
		}
	}
	return true, root.set("linux", linux)
}

// access is what NRI's own generator gives to a device, so that what it has done
// is seen to be done.
func access(d specs.LinuxDevice) string {
	if d.Type == "b" {
		return "rwm"
	}
	return "rw"
}

// ruleID is a [specs.LinuxDeviceCgroup] that can be compared.
type ruleID struct {
	allow              bool
	kind, access       string
	hasMajor, hasMinor bool
	major, minor       int64
}

func idOf(rule specs.LinuxDeviceCgroup) ruleID {
	id := ruleID{allow: rule.Allow, kind: rule.Type, access: rule.Access}
	if rule.Major != nil {
		id.hasMajor, id.major = true, *rule.Major
	}
	if rule.Minor != nil {
		id.hasMinor, id.minor = true, *rule.Minor
	}
	return id
}

func applyMounts(root *object, edits Edits) (bool, error) {
	if len(edits.Mounts) == 0 {
		return false, nil
	}
	os, err := containerOS(root)
	if err != nil {
		return false, err
	}
	return extend(root, "mounts", edits.Mounts, func(m specs.Mount) string { return DestinationKey(os, m.Destination) })
}

// containerOS tells which operating system's container root is of.
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

// extend appends those of added to the list at key whose id no entry of it has, and
// tells whether there were any.
func extend[T any, K comparable](o *object, key string, added []T, id func(T) K) (bool, error) {
	if len(added) == 0 {
		return false, nil
	}
	list, err := o.list(key)
	if err != nil {
		return false, err
	}
	var known []K
	for begin, end := range elements(list) {
		var entry T
		if err := json.Unmarshal(list[begin:end], &entry); err != nil {
			return false, fmt.Errorf("%s[%d]: %w", key, len(known), err)
		}
		known = append(known, id(entry))
	}
	var more [][]byte
	for _, entry := range added {
		if slices.Contains(known, id(entry)) {
			continue
		}
		raw, err := marshal(entry)
		if err != nil {
			return false, fmt.Errorf("%s: %w", key, err)
		}
		known = append(known, id(entry))
		more = append(more, raw)
	}
	if len(more) == 0 {
		return false, nil
	}
	return true, o.set(key, json.RawMessage(appended(list, more...)))
}

func wrap(where string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", where, err)
}
