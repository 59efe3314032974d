package ocispec

import (
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
	env, err := process.texts("env")
	if err != nil {
		return false, fmt.Errorf("process: %w", err)
	}
	changed := false
	for _, variable := range edits.Env {
		if slices.Contains(env, variable) {
			continue
		}
		name, _, _ := strings.Cut(variable, "=")
		env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, name+"=") })
		env = append(env, variable)
		changed = true
	}
	if !changed {
		return false, nil
	}
	if err := process.set("env", env); err != nil {
		return false, fmt.Errorf("process: %w", err)
	}
	return true, root.set("process", process)
}

func applyWindowsDevices(root *object, edits Edits) (bool, error) {
	if len(edits.WindowsDevices) == 0 {
		return false, nil
	}
	windows, err := root.child("windows")
	if err != nil {
		return false, err
	}
	changed, err := extend(windows, "devices", edits.WindowsDevices, func(a, b specs.WindowsDevice) bool {
		return idType(a) == idType(b) && strings.EqualFold(strings.Trim(a.ID, "{}"), strings.Trim(b.ID, "{}"))
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
	changedNodes, err := extend(linux, "devices", edits.LinuxDevices, func(a, b specs.LinuxDevice) bool { return a.Path == b.Path })
	if err != nil {
		return false, wrap("linux", err)
	}
	changedRules, err := extend(resources, "devices", rules, sameRule)
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

func sameRule(a, b specs.LinuxDeviceCgroup) bool {
	same := func(a, b *int64) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	return a.Allow == b.Allow && a.Type == b.Type && a.Access == b.Access && same(a.Major, b.Major) && same(a.Minor, b.Minor)
}

func applyMounts(root *object, edits Edits) (bool, error) {
	if len(edits.Mounts) == 0 {
		return false, nil
	}
	os, err := containerOS(root)
	if err != nil {
		return false, err
	}
	return extend(root, "mounts", edits.Mounts, func(a, b specs.Mount) bool { return samePath(os, a.Destination, b.Destination) })
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

// extend appends those of added to the list at key that are not the same as an
// entry of it, and tells whether there were any.
func extend[T any](o *object, key string, added []T, same func(a, b T) bool) (bool, error) {
	if len(added) == 0 {
		return false, nil
	}
	var list []json.RawMessage
	if err := o.get(key, &list); err != nil {
		return false, err
	}
	known := make([]T, len(list), len(list)+len(added))
	for i, raw := range list {
		if err := json.Unmarshal(raw, &known[i]); err != nil {
			return false, fmt.Errorf("%s[%d]: %w", key, i, err)
		}
	}
	before := len(list)
	for _, entry := range added {
		if slices.ContainsFunc(known, func(k T) bool { return same(k, entry) }) {
			continue
		}
		raw, err := marshal(entry)
		if err != nil {
			return false, fmt.Errorf("%s: %w", key, err)
		}
		known = append(known, entry)
		list = append(list, raw)
	}
	if len(list) == before {
		return false, nil
	}
	return true, o.set(key, list)
}

func wrap(where string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", where, err)
}
