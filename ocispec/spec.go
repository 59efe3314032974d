package ocispec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/tidwall/gjson"
)

// errSpec means that data is not an OCI runtime spec.
var errSpec = errors.New("not an OCI runtime spec that can be edited")

// Spec is a parsed OCI runtime spec. It consists of the JSON and the lists in it that edits change.
type Spec struct {
	SpecInfo
	data           []byte
	root           *object
	env            list[string]
	windowsDevices list[specs.WindowsDevice]
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
	if !gjson.ValidBytes(data) {
		return Spec{}, fmt.Errorf("%w: %w", errSpec, errMalformed)
	}
	value := gjson.ParseBytes(data)
	if !value.IsObject() {
		return Spec{}, fmt.Errorf("%w: %w", errSpec, errNotObject)
	}
	var e editor
	root := &object{members: members(value)}
	windows := e.object(root, "windows")
	s := Spec{
		data: data, root: root,
		env:            readList[string](&e, e.object(root, "process"), "env"),
		windowsDevices: readList[specs.WindowsDevice](&e, windows, "devices"),
	}
	s.SpecInfo = SpecInfo{
		OS: "linux", Env: s.env.values, Devices: s.windowsDevices.values,
		HasWindows: e.get(root, "windows").Exists(), HyperV: e.get(windows, "hyperv").Exists(),
	}
	if s.HasWindows && !e.get(root, "linux").Exists() {
		s.OS = "windows"
	}
	if annotations := e.get(root, "annotations"); annotations.Exists() {
		if err := json.Unmarshal([]byte(annotations.Raw), &s.Annotations); err != nil {
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
	devices := readList[specs.LinuxDevice](&e, linux, "devices")
	deviceRules := readList[specs.LinuxDeviceCgroup](&e, e.object(linux, "resources"), "devices")
	mounts := readList[specs.Mount](&e, s.root, "mounts")

	destinationKey := func(destination string) string { return DestinationKey(s.OS, destination) }
	keys, variables := s.changedEnv(edits.Env)
	editList(&e, s.env, keys, variables, s.envKey)
	editList(&e, s.windowsDevices, convert(edits.RemoveWindowsDevices, windowsDeviceKey), edits.WindowsDevices, windowsDeviceKey)
	editList(&e, devices, nil, convert(edits.LinuxDevices, func(d LinuxDevice) specs.LinuxDevice { return d.LinuxDevice }),
		func(d specs.LinuxDevice) string { return d.Path })
	editList(&e, deviceRules, nil, convert(edits.LinuxDevices, deviceRule), deviceRuleKey)
	editList(&e, mounts, convert(edits.RemoveMounts, destinationKey), edits.Mounts,
		func(m specs.Mount) string { return destinationKey(m.Destination) })
	switch {
	case e.err != nil:
		return nil, false, fmt.Errorf("%w: %w", errSpec, e.err)
	case !e.changed:
		return s.data, false, nil
	}
	return s.root.appendTo(make([]byte, 0, len(s.data)+8<<10)), true, nil
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

// windowsDeviceKey returns the same value for all spellings of a device.
func windowsDeviceKey(d specs.WindowsDevice) specs.WindowsDevice {
	if d.IDType == IDTypeClassGUID {
		d.IDType = IDTypeClass
	}
	return specs.WindowsDevice{ID: strings.ToLower(strings.Trim(d.ID, "{}")), IDType: d.IDType}
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
