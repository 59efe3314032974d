package ocispec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/tidwall/gjson"
)

// ErrSpec means that data is not an OCI runtime spec.
var ErrSpec = errors.New("not an OCI runtime spec that can be edited")

// Spec is a parsed OCI runtime spec. It consists of the JSON and the lists in it that
// edits change.
type Spec struct {
	Facts
	data           []byte
	root           *object
	env            list[string]
	windowsDevices list[specs.WindowsDevice]
	// Apply reads the following lists.
	linuxDevices list[specs.LinuxDevice]
	deviceRules  list[specs.LinuxDeviceCgroup]
	mounts       list[specs.Mount]
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
	if !gjson.ValidBytes(data) {
		return Spec{}, fmt.Errorf("%w: %w", ErrSpec, errMalformed)
	}
	value := gjson.ParseBytes(data)
	if !value.IsObject() {
		return Spec{}, fmt.Errorf("%w: %w", ErrSpec, errNoObject)
	}
	var r reader
	root := &object{members: members(value)}
	windows := r.object(root, "windows")
	s := Spec{
		data: data, root: root,
		env:            readList[string](&r, r.object(root, "process"), "env"),
		windowsDevices: readList[specs.WindowsDevice](&r, windows, "devices"),
	}
	s.Facts = Facts{
		OS: Linux, Env: s.env.values, Devices: s.windowsDevices.values,
		Windows: r.get(root, "windows").Exists(), HyperV: r.get(windows, "hyperv").Exists(),
	}
	if s.Windows && !r.get(root, "linux").Exists() {
		s.OS = Windows
	}
	if annotations := r.get(root, "annotations"); annotations.Exists() {
		if err := json.Unmarshal([]byte(annotations.Raw), &s.Annotations); err != nil {
			r.fail("annotations", err)
		}
	}
	if r.err != nil {
		return Spec{}, fmt.Errorf("%w: %w", ErrSpec, r.err)
	}
	return s, nil
}

// Apply returns the spec with edits applied. Everything else stays as it is,
// unknown fields included, and the spec's own mounts win. When there is nothing
// to change, the result is the data that the spec was parsed from and changed is
// false. Errors match [ErrSpec]. The spec must not be used again.
func (s Spec) Apply(edits Edits) (data []byte, changed bool, err error) {
	// A container that gets no edits starts even if there is something wrong in these lists.
	var r reader
	linux := r.object(s.root, "linux")
	s.linuxDevices = readList[specs.LinuxDevice](&r, linux, "devices")
	s.deviceRules = readList[specs.LinuxDeviceCgroup](&r, r.object(linux, "resources"), "devices")
	s.mounts = readList[specs.Mount](&r, s.root, "mounts")
	if r.err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrSpec, r.err)
	}
	for _, apply := range []func(Edits) (bool, error){
		s.applyEnv, s.applyWindowsDevices, s.applyLinuxDevices, s.applyDeviceRules, s.applyMounts,
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

// applyEnv replaces variables. Those that have their values already stay where they are.
func (s Spec) applyEnv(edits Edits) (bool, error) {
	var names, variables []string
	for i, variable := range edits.Env {
		name, value, _ := strings.Cut(variable, "=")
		_, replaced := LookupEnv(s.OS, edits.Env[i+1:], name)
		if before, found := LookupEnv(s.OS, s.Env, name); !replaced && (!found || before != value) {
			names, variables = append(names, envName(variable)), append(variables, variable)
		}
	}
	return edit(s.env, names, variables, envName)
}

// envName returns the name of a variable with its "=", "" for what is no variable.
func envName(variable string) string { return variable[:strings.IndexByte(variable, '=')+1] }

func (s Spec) applyWindowsDevices(edits Edits) (bool, error) {
	var removed []specs.WindowsDevice
	for _, d := range edits.RemoveWindowsDevices {
		removed = append(removed, windowsDeviceKey(d))
	}
	return edit(s.windowsDevices, removed, edits.WindowsDevices, windowsDeviceKey)
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
	for _, d := range edits.LinuxDevices {
		added = append(added, d.LinuxDevice)
	}
	return edit(s.linuxDevices, nil, added, func(d specs.LinuxDevice) string { return d.Path })
}

// applyDeviceRules permits the use of the added devices.
func (s Spec) applyDeviceRules(edits Edits) (bool, error) {
	var added []specs.LinuxDeviceCgroup
	for _, d := range edits.LinuxDevices {
		added = append(added, specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: &d.Major, Minor: &d.Minor, Access: Access(d.LinuxDevice)})
	}
	return edit(s.deviceRules, nil, added, deviceRuleKey)
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
	return edit(s.mounts, removed, edits.Mounts, func(m specs.Mount) string { return DestinationKey(s.OS, m.Destination) })
}
