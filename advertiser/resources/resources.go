// Package resources finds the extended resource of each GPU of a node, by the rules of the
// configuration.
package resources

import (
	"fmt"
	"slices"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Device is a device of the node and the rule of its resource.
type Device struct {
	discovery.Device
	// Rule is the first rule that matches the device, nil if there is none.
	Rule *policy.ResourceRule
	// Reason is why Rule is nil, "" if it is not.
	Reason string
}

// Match matches devices with the rules of p, and returns all of them in their order, on a node
// with containers of the operating system nodeOS, "" if it does not matter.
//
// If the kubelet gives containers their GPUs, the node is limited to the first resource of p: for a
// container that requests GPUs of two resources, the kubelet can silently drop some of them.
func Match(devices []discovery.Device, p policy.Policy, nodeOS string) []Device {
	matched := make([]Device, 0, len(devices))
	for _, d := range devices {
		found := Device{Device: d}
		found.Rule, found.Reason = ruleOf(d, p, nodeOS)
		matched = append(matched, found)
	}
	return matched
}

// ruleOf returns the rule of a device, or nil and why it has none.
func ruleOf(d discovery.Device, p policy.Policy, nodeOS string) (rule *policy.ResourceRule, reason string) {
	if reason := exclusionReason(d, nodeOS); reason != "" {
		return nil, reason
	}
	rules := p.Resources
	i := slices.IndexFunc(rules, func(r policy.ResourceRule) bool { return matches(d, r.Match) })
	if i < 0 {
		return nil, "no resource of the configuration matches it"
	}
	if p.Injection == policy.InjectByKubelet && rules[i].Name != rules[0].Name {
		return nil, fmt.Sprintf(
			"with injection: kubelet, a node can have GPUs of one resource, which is %s, the first of the configuration; move %s to the front to advertise this GPU instead",
			rules[0].Name, rules[i].Name)
	}
	return &rules[i], ""
}

// exclusionReason returns why a device can belong to no resource, "" if it can belong to one.
func exclusionReason(d discovery.Device, nodeOS string) string {
	switch {
	case d.Software:
		return "it is a software renderer"
	case d.Kind() == discovery.KindNone && !d.Health.OK():
		return d.Health.Reason
	case d.Kind() == discovery.KindNone:
		return "it supports neither display nor compute"
	case nodeOS == "linux" && len(d.DeviceNodes) == 0:
		return "it has no device node, so Linux containers cannot have it"
	case nodeOS == "windows" && len(d.DeviceNodes) > 0 && d.LocationPath == "":
		return "it has device nodes and no location path, so Windows containers cannot have it"
	}
	return ""
}

// matches reports whether d meets all conditions of m.
func matches(d discovery.Device, m policy.Match) bool {
	return (m.Kind == "" || m.Kind == string(d.Kind())) &&
		(len(m.Vendors) == 0 || slices.Contains(m.Vendors, d.VendorID)) &&
		anyMatches(m.Descriptions, d.Description) &&
		anyMatches(m.LocationPaths, d.LocationPath) &&
		d.DedicatedMemory >= m.DedicatedMemory.Min &&
		(m.DedicatedMemory.Max == 0 || d.DedicatedMemory <= m.DedicatedMemory.Max) &&
		versionInRange(d.DriverVersion, m.DriverVersion) &&
		flagMatches(m.Integrated, d.Integrated) &&
		flagMatches(m.Detachable, d.Detachable) &&
		flagMatches(m.MachineLearningOnly, d.MachineLearningOnly)
}

func flagMatches(want *bool, value bool) bool { return want == nil || *want == value }

func anyMatches(patterns []string, value string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return winpath.Match(p, value) })
}

func versionInRange(version string, bounds policy.DriverBounds) bool {
	if bounds.Min == nil && bounds.Max == nil {
		return true
	}
	var v policy.DriverVersion
	err := v.UnmarshalText([]byte(version))
	return err == nil && len(v) == 4 && v.Compare(bounds.Min) >= 0 && v.Compare(bounds.Max) <= 0
}
