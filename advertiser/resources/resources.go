// Package resources says which extended resource each GPU of a node belongs to,
// by the rules of the configuration. It decides and touches nothing.
package resources

import (
	"slices"
	"strconv"
	"strings"

	"directx-nri/discovery"
	"directx-nri/internal/policy"
	"directx-nri/internal/winpath"
)

// Assigned is a device and where it belongs.
type Assigned struct {
	Device discovery.Device
	// Rule is the rule that the device belongs to, nil when it belongs to none.
	Rule *policy.Resource
	// Reason says, where Rule is nil, why no container can have the device.
	Reason string
}

// The reasons for which a device belongs to no resource.
const (
	ReasonSoftware = "it is a software renderer"
	ReasonNoKind   = "it supports neither display nor compute"
	ReasonNoRule   = "none of the configuration's resources is for it"
)

// Assign says of each device, in their order, which rule it belongs to: the
// first that matches. So no device is in two resources. Rules are not changed,
// and what is returned points to them.
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

// Names returns the names of rules, each once, in the order of the rules.
func Names(rules []policy.Resource) []string {
	var names []string
	for _, r := range rules {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	return names
}

// Matches tells whether all of what m asks for is so with d. What d is by kind
// does not matter where m does not ask: [Assign] sees to that.
func Matches(d discovery.Device, m policy.Match) bool {
	return (m.Kind == "" || m.Kind == string(d.Kind())) &&
		(len(m.Vendors) == 0 || slices.Contains(m.Vendors, uint16(d.VendorID))) &&
		anyFits(m.Descriptions, d.Description) &&
		anyFits(m.LocationPaths, d.LocationPath) &&
		d.DedicatedMemory >= m.MinMemory &&
		(m.MaxMemory == 0 || d.DedicatedMemory <= m.MaxMemory) &&
		inBounds(d.DriverVersion, m.MinDriver, m.MaxDriver) &&
		is(m.Integrated, d.Integrated) &&
		is(m.Detachable, d.Detachable)
}

func is(wanted *bool, found bool) bool { return wanted == nil || *wanted == found }

func anyFits(patterns []string, text string) bool {
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

// parseVersion reads a driver's version in Windows' form, four numbers below
// 65,536 with dots between.
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
