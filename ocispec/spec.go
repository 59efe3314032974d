package ocispec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// errSpec means that data is not an OCI runtime spec.
var errSpec = errors.New("not an OCI runtime spec that can be edited")

// Spec is a parsed OCI runtime spec.
type Spec struct {
	SpecInfo
	data                   []byte
	root, process, windows *object
	windowsDevices         []element[specs.WindowsDevice]
}

// SpecInfo has the parts of a spec that a decision needs.
type SpecInfo struct {
	// OS is the container's operating system. The spec of a Linux container on
	// Windows has a Linux and a Windows part.
	// https://github.com/opencontainers/runtime-spec/blob/main/config.md#platform-specific-configuration
	OS          string
	Env         []string
	Annotations map[string]string
	// Devices are the Windows devices.
	Devices []specs.WindowsDevice
	// HasWindows reports that the spec has a Windows part, HyperV that the container runs in a
	// virtual machine of its own.
	HasWindows, HyperV bool
}

// ParseSpec parses a spec. The result refers to data, which must not be changed.
func ParseSpec(data []byte) (Spec, error) {
	members, err := decodeObject(data)
	if err != nil {
		return Spec{}, fmt.Errorf("%w: %w", errSpec, err)
	}
	var e editor
	root := &object{members: members}
	process, windows := e.object(root, "process"), e.object(root, "windows")
	s := Spec{
		data: data, root: root, process: process, windows: windows,
		windowsDevices: readList[element[specs.WindowsDevice]](&e, windows, "devices"),
	}
	device := func(d element[specs.WindowsDevice]) specs.WindowsDevice { return d.value }
	s.SpecInfo = SpecInfo{
		OS: "linux", Env: readList[string](&e, process, "env"), Devices: convert(s.windowsDevices, device),
		HasWindows: e.get(root, "windows") != nil, HyperV: e.get(windows, "hyperv") != nil,
	}
	if s.HasWindows && e.get(root, "linux") == nil {
		s.OS = "windows"
	}
	if annotations := e.get(root, "annotations"); annotations != nil {
		if err := json.Unmarshal(annotations, &s.Annotations); err != nil {
			e.fail("annotations", err)
		}
	}
	if e.err != nil {
		return Spec{}, fmt.Errorf("%w: %w", errSpec, e.err)
	}
	return s, nil
}

// Apply returns the spec with edits applied. Everything else stays as it is, unknown fields
// included, and the spec's own mounts take precedence. When there is nothing to change, the result
// is the data that the spec was parsed from and changed is false. The spec must not be used again.
func (s Spec) Apply(edits Edits) (data []byte, changed bool, err error) {
	// These lists are read only now, so that an error in them does not stop a container that gets
	// no edits.
	var e editor
	linux := e.object(s.root, "linux")
	resources := e.object(linux, "resources")
	devices := readList[element[specs.LinuxDevice]](&e, linux, "devices")
	rules := readList[element[specs.LinuxDeviceCgroup]](&e, resources, "devices")
	mounts := readList[element[specs.Mount]](&e, s.root, "mounts")
	if e.err != nil {
		return nil, false, fmt.Errorf("%w: %w", errSpec, e.err)
	}

	keys, variables := s.changedEnv(edits.Env)
	editList(&e, s.process, "env", s.Env, keys, variables, s.envKey)
	removed := convert(edits.RemoveWindowsDevices, windowsDeviceKey)
	editList(&e, s.windows, "devices", s.windowsDevices, removed, elements(edits.WindowsDevices),
		func(d element[specs.WindowsDevice]) specs.WindowsDevice { return windowsDeviceKey(d.value) })
	added := elements(convert(edits.LinuxDevices, func(d LinuxDevice) specs.LinuxDevice { return d.LinuxDevice }))
	editList(&e, linux, "devices", devices, nil, added, func(d element[specs.LinuxDevice]) string { return d.value.Path })
	editList(&e, resources, "devices", rules, nil, elements(convert(edits.LinuxDevices, deviceRule)),
		func(r element[specs.LinuxDeviceCgroup]) string { return deviceRuleKey(r.value) })
	destinationKey := func(destination string) string { return DestinationKey(s.OS, destination) }
	editList(&e, s.root, "mounts", mounts, convert(edits.RemoveMounts, destinationKey), elements(edits.Mounts),
		func(m element[specs.Mount]) string { return destinationKey(m.value.Destination) })
	for _, o := range []*object{resources, linux, s.process, s.windows} { // a parent after its children
		if o.changed {
			e.set(o.parent, o.key, o.members)
		}
	}
	if e.err == nil && !s.root.changed {
		return s.data, false, nil
	}
	if e.err == nil {
		data, e.err = marshal(s.root.members)
	}
	if e.err != nil {
		return nil, false, fmt.Errorf("%w: %w", errSpec, e.err)
	}
	return data, true, nil
}

// changedEnv returns the variables whose values the container does not have yet, and their keys.
// Other variables are not edited, so that they keep their places.
func (s Spec) changedEnv(variables []string) (keys, changed []string) {
	for i, variable := range variables {
		name, value, _ := strings.Cut(variable, "=")
		_, isSetLater := LookupEnv(s.OS, variables[i+1:], name)
		if before, found := LookupEnv(s.OS, s.Env, name); !isSetLater && (!found || before != value) {
			keys, changed = append(keys, s.envKey(variable)), append(changed, variable)
		}
	}
	return keys, changed
}

// envKey returns the name of an environment variable with its "=", "" if there is no "=". Windows
// ignores the case of names.
func (s Spec) envKey(variable string) string {
	key := variable[:strings.IndexByte(variable, '=')+1]
	if s.OS == "windows" {
		return strings.ToUpper(key)
	}
	return key
}

// windowsDeviceKey returns the same value for all cases of a device's ID.
func windowsDeviceKey(d specs.WindowsDevice) specs.WindowsDevice {
	return specs.WindowsDevice{ID: strings.ToLower(d.ID), IDType: d.IDType}
}

// deviceRule returns the rule that permits the use of d.
func deviceRule(d LinuxDevice) specs.LinuxDeviceCgroup {
	return specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: &d.Major, Minor: &d.Minor, Access: DeviceAccess(d.LinuxDevice)}
}

// deviceRuleKey returns the same string for equal rules.
func deviceRuleKey(rule specs.LinuxDeviceCgroup) string {
	key, _ := json.Marshal(rule) // It has no value that cannot be encoded.
	return string(key)
}

// DeviceAccess returns the access to a device that NRI's generator grants, so that a
// spec which NRI has adjusted is not changed again.
func DeviceAccess(d specs.LinuxDevice) string {
	if d.Type == "b" {
		return "rwm"
	}
	return "rw"
}
