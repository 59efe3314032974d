// Package resources assigns the GPUs of a node to extended resources by the rules of
// the configuration.
package resources

import (
	"slices"
	"strconv"
	"strings"

	"directx-nri/discovery"
	"directx-nri/internal/policy"
	"directx-nri/internal/winpath"
)

// Assigned is a device and its resource.
type Assigned struct {
	Device discovery.Device
	// Rule is the first rule that matches the device, nil if there is none.
	Rule *policy.Resource
	// Reason is why there is no rule.
	Reason string
}

// Reasons why a device belongs to no resource.
const (
	ReasonSoftware = "it is a software renderer"
	ReasonNoKind   = "it supports neither display nor compute"
	ReasonNoRule   = "none of the configuration's resources is for it"
)

// Assign returns the devices, in their order, each with the first of rules that matches
// it.
func Assign(devices []discovery.Device, rules []policy.Resource) []Assigned {
	all := make([]Assigned, 0, len(devices))
	for _, d := range devices {
		all = append(all, assign(d, rules))
	}
	return all
}

func assign(d discovery.Device, rules []policy.Resource) Assigned {
	switch {
	case d.Software:
		return Assigned{Device: d, Reason: ReasonSoftware}
	case d.Kind() == discovery.KindNone:
		return Assigned{Device: d, Reason: ReasonNoKind}
	}
	i := slices.IndexFunc(rules, func(r policy.Resource) bool { return Matches(d, r.Match) })
	if i < 0 {
		return Assigned{Device: d, Reason: ReasonNoRule}
	}
	return Assigned{Device: d, Rule: &rules[i]}
}

// Names returns the names of the rules without repetitions.
func Names(rules []policy.Resource) []string {
	var names []string
	for _, r := range rules {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	return names
}

// Matches reports whether d meets all conditions of m.
func Matches(d discovery.Device, m policy.Match) bool {
	return (m.Kind == "" || m.Kind == string(d.Kind())) &&
		(len(m.Vendors) == 0 || slices.Contains(m.Vendors, uint16(d.VendorID))) &&
		anyMatches(m.Descriptions, d.Description) &&
		anyMatches(m.LocationPaths, d.LocationPath) &&
		d.DedicatedMemory >= m.MinMemory &&
		(m.MaxMemory == 0 || d.DedicatedMemory <= m.MaxMemory) &&
		inBounds(d.DriverVersion, m.MinDriver, m.MaxDriver) &&
		optional(m.Integrated, d.Integrated) &&
		optional(m.Detachable, d.Detachable)
}

func optional(wanted *bool, found bool) bool { return wanted == nil || *wanted == found }

func anyMatches(patterns []string, text string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return winpath.Match(p, text) })
}

func inBounds(version string, from, to policy.DriverVersion) bool {
	none := policy.DriverVersion{}
	if from == none && to == none {
		return true
	}
	v, ok := parseVersion(version)
	return ok && slices.Compare(v[:], from[:]) >= 0 && (to == none || slices.Compare(v[:], to[:]) <= 0)
}

// parseVersion parses the version of a Windows driver, such as 31.0.15.1234.
func parseVersion(text string) (version policy.DriverVersion, ok bool) {
	parts := strings.Split(text, ".")
	if len(parts) != len(version) {
		return version, false
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return version, false
		}
		version[i] = uint16(n)
	}
	return version, true
}
