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
var ErrSpec = errors.New("the OCI runtime spec cannot be edited")

// Apply returns spec, the JSON of an OCI runtime spec, with edits applied:
// annotations, environment, mounts, Windows devices, and Linux devices with
// access to them. Everything else in spec stays as it is, fields that nobody has
// heard of included. When there is nothing left to do, spec itself is returned.
//
// The spec's own mounts win.
func Apply(spec []byte, edits Edits) ([]byte, error) {
	root, err := parseObject(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	changed := false
	for _, edit := range []func(*object, Edits) (bool, error){
		applyAnnotations, applyEnv, applyWindowsDevices, applyLinuxDevices, applyMounts,
	} {
		did, err := edit(root, edits)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSpec, err)
		}
		changed = changed || did
	}
	if !changed {
		return spec, nil
	}
	return marshal(root)
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
	var env []string
	if err := process.get("env", &env); err != nil {
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
		return a.IDType == b.IDType && strings.EqualFold(a.ID, b.ID)
	})
	if err != nil || !changed {
		return false, wrap("windows", err)
	}
	return true, root.set("windows", windows)
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

// containerOS tells how a spec's mount destinations are compared. A Linux
// container on Windows has both parts.
// https://github.com/opencontainers/runtime-spec/blob/main/config.md#platform-specific-configuration
func containerOS(root *object) (OS, error) {
	linux, err := root.find("linux")
	if err != nil {
		return "", err
	}
	windows, err := root.find("windows")
	if err != nil {
		return "", err
	}
	if windows >= 0 && linux < 0 {
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
