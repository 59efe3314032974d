package ocispec

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Errors of [Apply].
var (
	// ErrUnsupported tells an adjustment with something in it that Apply does
	// not know how to do. Nothing is applied then.
	ErrUnsupported = errors.New("the adjustment cannot be applied")
	// ErrSpec tells a spec that is not an OCI runtime spec.
	ErrSpec = errors.New("the OCI runtime spec cannot be edited")
)

// Apply returns spec, the JSON of an OCI runtime spec, with adjustment applied:
// annotations, environment, mounts, Linux devices with access to them, and the
// Windows devices that [Edits.Adjustment] put in. Everything else in spec stays
// as it is, fields that nobody has heard of included. When there is nothing
// left to do, spec itself is returned.
//
// The spec's own mounts win, as they do for the adjustment.
func Apply(spec []byte, adjustment *api.ContainerAdjustment) ([]byte, error) {
	if err := checkSupported(adjustment); err != nil {
		return nil, err
	}
	root, err := parseObject(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	changed := false
	for _, edit := range []func(*object, *api.ContainerAdjustment) (bool, error){
		applyAnnotations, applyEnv, applyWindowsDevices, applyLinuxDevices, applyMounts,
	} {
		did, err := edit(root, adjustment)
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

// checkSupported takes what Apply does out of a copy of adjustment and sees
// whether anything is left, so that what a later NRI adds is refused and not
// overlooked.
func checkSupported(adjustment *api.ContainerAdjustment) error {
	rest, ok := proto.Clone(adjustment).(*api.ContainerAdjustment)
	if !ok || rest == nil {
		return nil
	}
	for _, d := range rest.GetCDIDevices() {
		if _, ok := decodeDevice(d.GetName()); !ok {
			return fmt.Errorf("%w: CDI device %q is not one of ours", ErrUnsupported, d.GetName())
		}
	}
	for _, m := range rest.GetMounts() {
		if destination, removal := m.IsMarkedForRemoval(); removal {
			return fmt.Errorf("%w: removal of the mount at %s", ErrUnsupported, destination)
		}
	}
	for _, d := range rest.GetLinux().GetDevices() {
		if path, removal := d.IsMarkedForRemoval(); removal {
			return fmt.Errorf("%w: removal of the device %s", ErrUnsupported, path)
		}
	}
	for _, e := range rest.GetEnv() {
		if name, removal := e.IsMarkedForRemoval(); removal {
			return fmt.Errorf("%w: removal of the variable %s", ErrUnsupported, name)
		}
	}
	for key := range rest.GetAnnotations() {
		if name, removal := api.IsMarkedForRemoval(key); removal {
			return fmt.Errorf("%w: removal of the annotation %s", ErrUnsupported, name)
		}
	}
	rest.Annotations, rest.Env, rest.Mounts, rest.CDIDevices = nil, nil, nil, nil
	if rest.Linux != nil {
		rest.Linux.Devices = nil
	}
	if asks(rest.ProtoReflect()) {
		return fmt.Errorf("%w: it asks for %s", ErrUnsupported, rest)
	}
	return nil
}

// asks tells whether message has anything in it. NRI's runtime side merges the
// answers of several plugins into one with empty messages in it. An optional
// value is one whatever it is, for it is left out when it is not meant.
func asks(message protoreflect.Message) bool {
	found := false
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Message() == nil || field.IsList() || field.IsMap() || strings.HasPrefix(string(field.Message().Name()), "Optional") {
			found = true
		} else {
			found = asks(value.Message())
		}
		return !found
	})
	return found
}

func applyAnnotations(root *object, adjustment *api.ContainerAdjustment) (bool, error) {
	if len(adjustment.GetAnnotations()) == 0 {
		return false, nil
	}
	annotations := map[string]string{}
	if err := root.get("annotations", &annotations); err != nil {
		return false, err
	}
	changed := false
	for key, value := range adjustment.GetAnnotations() {
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

func applyEnv(root *object, adjustment *api.ContainerAdjustment) (bool, error) {
	if len(adjustment.GetEnv()) == 0 {
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
	for _, e := range adjustment.GetEnv() {
		variable := e.GetKey() + "=" + e.GetValue()
		if slices.Contains(env, variable) {
			continue
		}
		env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, e.GetKey()+"=") })
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

func applyWindowsDevices(root *object, adjustment *api.ContainerAdjustment) (bool, error) {
	var added []specs.WindowsDevice
	for _, name := range adjustment.GetCDIDevices() {
		d, ok := decodeDevice(name.GetName())
		if !ok {
			return false, fmt.Errorf("CDI device %q is not one of ours", name.GetName())
		}
		added = append(added, d)
	}
	if len(added) == 0 {
		return false, nil
	}
	windows, err := root.child("windows")
	if err != nil {
		return false, err
	}
	changed, err := extend(windows, "devices", added, func(a, b specs.WindowsDevice) bool {
		return a.IDType == b.IDType && strings.EqualFold(a.ID, b.ID)
	})
	if err != nil || !changed {
		return false, wrap("windows", err)
	}
	return true, root.set("windows", windows)
}

func applyLinuxDevices(root *object, adjustment *api.ContainerAdjustment) (bool, error) {
	var nodes []specs.LinuxDevice
	var rules []specs.LinuxDeviceCgroup
	for _, d := range adjustment.GetLinux().GetDevices() {
		node := d.ToOCI()
		nodes = append(nodes, node)
		// The access that NRI's own generator gives, so that what it has done is
		// seen to be done.
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: node.Type, Major: &node.Major, Minor: &node.Minor, Access: d.AccessString()})
	}
	if len(nodes) == 0 {
		return false, nil
	}
	linux, err := root.child("linux")
	if err != nil {
		return false, err
	}
	resources, err := linux.child("resources")
	if err != nil {
		return false, wrap("linux", err)
	}
	changedNodes, err := extend(linux, "devices", nodes, func(a, b specs.LinuxDevice) bool { return a.Path == b.Path })
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

func sameRule(a, b specs.LinuxDeviceCgroup) bool {
	same := func(a, b *int64) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	return a.Allow == b.Allow && a.Type == b.Type && a.Access == b.Access && same(a.Major, b.Major) && same(a.Minor, b.Minor)
}

func applyMounts(root *object, adjustment *api.ContainerAdjustment) (bool, error) {
	var added []specs.Mount
	for _, m := range adjustment.GetMounts() {
		added = append(added, m.ToOCI(nil))
	}
	os, err := containerOS(root)
	if err != nil {
		return false, err
	}
	return extend(root, "mounts", added, func(a, b specs.Mount) bool { return samePath(os, a.Destination, b.Destination) })
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
