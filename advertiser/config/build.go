package config

import (
	"cmp"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// build returns the policy of f, and adds errors of keys that depend on each other to d.
func (c Compiler) build(d *yamlDocument, f Configuration) policy.Policy {
	p := f.Policy
	p.CompiledFrom = policy.CompiledFrom{Inventory: f.Inventory}
	p.Assignment = cmp.Or(p.Assignment, presets()[f.Preset].assignment)
	if p.Injection == policy.InjectByNRI && c.NodeOS == "windows" {
		d.errorf("injection", "containerd calls no NRI plugin on Windows: use shim or kubelet")
	}
	p.ExtraMounts = c.buildExtraMounts(d, p.ExtraMounts)
	buildRuntimeFiles(d, p.RuntimeFiles)
	p.Resources = buildResources(d, f)
	for path, value := range map[string]string{"inventory": f.Inventory, "shim.log": f.Shim.Log} {
		if value != "" && !c.isAbs(value) {
			d.errorf(path, "%q is not an absolute path", value)
		}
	}
	return p
}

// isAbs reports whether a path is absolute on this system, or on the node's if the configuration is
// only inspected.
func (c Compiler) isAbs(path string) bool {
	if c.InspectOnly && c.NodeOS == "windows" {
		return winpath.IsAbs(path)
	}
	if c.InspectOnly {
		return strings.HasPrefix(path, "/")
	}
	return filepath.IsAbs(path)
}

// preset has the resources and the assignment mode of another device plugin.
type preset struct {
	assignment policy.Assignment
	resources  []policy.ResourceRule
}

// presets returns the presets by name. "" is that of a node without one.
func presets() map[string]preset {
	discrete := policy.DefaultResources()
	for i := range discrete {
		discrete[i].Match.Integrated, discrete[i].Match.Detachable = new(false), new(false)
	}
	display := func(name string, descriptions ...string) []policy.ResourceRule {
		return []policy.ResourceRule{{Name: name, Match: policy.Match{Kind: "display", Descriptions: descriptions}}}
	}
	return map[string]preset{
		"": {policy.AssignAuto, policy.DefaultResources()},
		// https://github.com/TensorWorks/DirectX-Device-Plugins does not offer
		// integrated and detachable GPUs by default.
		"tensorworks": {policy.AssignByPath, discrete},
		// https://github.com/aarnaud/k8s-directx-device-plugin offers GPUs with nvidia
		// in their name by default.
		"microsoft": {policy.AssignByClass, display("microsoft.com/directx", "*nvidia*")},
		// https://www.alibabacloud.com/help/doc-detail/273131.htm
		"alibaba": {policy.AssignByClass, display("windows.alibabacloud.com/directx")},
	}
}

// buildResources returns the rules, with their replicas set.
func buildResources(d *yamlDocument, f Configuration) []policy.ResourceRule {
	rules := f.Resources
	switch {
	case rules == nil:
		rules = presets()[f.Preset].resources
	case f.Preset != "":
		d.errorf("preset", "resources and preset exclude each other: remove one of them")
	}
	for i := range rules {
		r, path := &rules[i], fmt.Sprintf("resources[%d].match.", i)
		r.Replicas, r.AllocationPolicy = cmp.Or(r.Replicas, f.Replicas), cmp.Or(r.AllocationPolicy, policy.Distributed)
		r.MixedDrivers = cmp.Or(r.MixedDrivers, policy.RefuseMixed)
		if memory := r.Match.DedicatedMemory; memory.Max != 0 && memory.Max < memory.Min {
			d.errorf(path+"dedicatedMemory", "max is less than min")
		}
		if version := r.Match.DriverVersion; !version.Max.IsZero() && version.Max.Less(version.Min) {
			d.errorf(path+"driverVersion", "max is less than min")
		}
	}
	if !d.hasErrors("resources") {
		for i, r := range rules {
			d.check(fmt.Sprintf("resources[%d]", i), checkConflicts(r, rules[:i]))
		}
	}
	return rules
}

// checkConflicts returns an error if rule r conflicts with an earlier one.
func checkConflicts(r policy.ResourceRule, earlierRules []policy.ResourceRule) error {
	key := allocation.AnnotationKey(r.Name)
	for i, earlier := range earlierRules {
		switch {
		case covers(earlier.Match, r.Match):
			return fmt.Errorf("matches no GPU that resources[%d] does not match first: move it before that rule, or make that rule match less", i)
		case earlier.Name != r.Name && key == allocation.AnnotationKey(earlier.Name):
			return fmt.Errorf("the names %s and %s are too similar: both map to %s", earlier.Name, r.Name, key)
		case earlier.Name != r.Name:
		case earlier.AllocationPolicy != r.AllocationPolicy, earlier.MaxPerContainer != r.MaxPerContainer,
			earlier.MixedDrivers != r.MixedDrivers:
			return fmt.Errorf("%s is also the resource of resources[%d]: allocationPolicy, maxPerContainer and mixedDrivers must be the same in both",
				r.Name, i)
		}
	}
	return nil
}

// covers reports whether m is known to match every GPU that n matches: it is equal to n, or has no
// condition except the kind.
func covers(m, n policy.Match) bool {
	return reflect.DeepEqual(m, n) || reflect.DeepEqual(m, policy.Match{Kind: m.Kind}) && (m.Kind == "" || m.Kind == n.Kind)
}

// buildRuntimeFiles checks the files that the configuration adds, and sets their directories.
func buildRuntimeFiles(d *yamlDocument, byVendor map[pci.Vendor]policy.RuntimeFiles) {
	for vendor, files := range byVendor {
		for i, file := range files.Add {
			files.Add[i].Directory = cmp.Or(file.Directory, policy.System32)
			if file.Destination != "" && winpath.HasWildcard(file.Source) {
				d.errorf(fmt.Sprintf("runtimeFiles.%s.add[%d]", vendor, i), "a source with wildcards can be several files, "+
					"which cannot have one destination: remove the destination, or use a source without * and ?")
			}
		}
	}
}

// buildExtraMounts checks m, and returns it with clean paths and the default of Sources.
func (c Compiler) buildExtraMounts(d *yamlDocument, m policy.ExtraMounts) policy.ExtraMounts {
	m.Configured = m.Sources != ""
	m.Sources = cmp.Or(m.Sources, policy.MountSourcesDriverStore)
	reserved := append([]string{c.StateDir}, c.ReservedDirs...)
	for key, dirs := range map[string][]string{"hostDirectories": m.HostDirectories, "destinations": m.Destinations} {
		for i, dir := range dirs {
			if dir == "" {
				continue // The decoder has added an error.
			}
			var err error
			if dirs[i], err = cleanDirectory(c.NodeOS, dir); err == nil && key == "hostDirectories" {
				err = checkHostDirectory(c.NodeOS, dirs[i], reserved)
			}
			d.check(fmt.Sprintf("extraMounts.%s[%d]", key, i), err)
		}
	}
	if m.Sources == policy.MountSourcesHostDirectories && len(m.HostDirectories) == 0 {
		d.errorf("extraMounts.sources", "%s needs extraMounts.hostDirectories", m.Sources)
	}
	return m
}
