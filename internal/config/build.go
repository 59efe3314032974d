package config

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// build returns the policy of f, and adds errors of what its keys say together to d.
func (c Compiler) build(d *document, f File) policy.Policy {
	p := policy.Policy{
		Source:          policy.Source{Inventory: f.Inventory},
		Assignment:      cmp.Or(f.AssignmentMode, presets()[f.Preset].assignment),
		DriverFiles:     f.DriverFiles,
		Injection:       f.Injection,
		ServedBy:        cmp.Or(f.ServedBy, policy.DefaultServedBy(c.NodeOS)),
		ExtraMounts:     c.extraMounts(d, f.ExtraMounts),
		VisibilityHints: f.VisibilityHints, FailOnInitError: f.FailOnInitError,
		MetricsAddress: f.Metrics.Address, Shim: f.Shim, Log: f.Log,
		RuntimeFiles:          runtimeFiles(f.RuntimeFiles),
		StandaloneEnvironment: f.Standalone.Environment,
		Resources:             resources(d, f),
	}
	for path, value := range map[string]string{"inventory": f.Inventory, "shim.log": f.Shim.Log} {
		if value != "" && !c.isAbs(value) {
			d.fail(path, "%q is not an absolute path", value)
		}
	}
	if r := f.Shim.Runtime; !c.isAbs(r) && strings.ContainsAny(r, `/\:`) { // C:x is in a drive's working directory.
		d.fail("shim.runtime", "%q is neither an absolute path nor a file name", r)
	} else if c.CheckRuntime != nil && !c.Inspect && d.root != nil && !d.failedBelow("shim") {
		d.check("shim.runtime", c.CheckRuntime(c.StateDir, r))
	}
	return policy.WithShimLog(p, c.StateDir)
}

// isAbs reports whether a path is absolute on the machine that has it: the node if the
// configuration is inspected anywhere, or else this one.
func (c Compiler) isAbs(path string) bool {
	if c.Inspect && c.NodeOS == "windows" {
		return winpath.IsAbs(path)
	}
	if c.Inspect {
		return strings.HasPrefix(path, "/")
	}
	return filepath.IsAbs(path)
}

// presets returns the presets by name. "" is that of a node without one.
func presets() map[string]preset {
	no := false
	discrete := policy.DefaultResources()
	for i := range discrete {
		discrete[i].Match.Integrated, discrete[i].Match.Detachable = &no, &no
	}
	display := func(name string, descriptions ...string) []policy.Resource {
		return []policy.Resource{{Name: name, Match: policy.Match{Kind: "display", Descriptions: descriptions}, AllocationPolicy: policy.Distributed}}
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

// preset has the resources and the assignment mode of another device plugin.
type preset struct {
	assignment policy.Assignment
	resources  []policy.Resource
}

// resources returns the rules, with their replicas set.
func resources(d *document, f File) []policy.Resource {
	rules := presets()[f.Preset].resources
	if f.Resources != nil {
		rules = nil
		if f.Preset != "" {
			d.fail("preset", "resources and preset exclude each other: remove one of them")
		}
		for _, r := range f.Resources {
			rules = append(rules, r.resource())
		}
		if !d.failedBelow("resources") {
			checkRules(d, rules)
		}
	}
	for i := range rules {
		rules[i].Replicas = cmp.Or(rules[i].Replicas, f.Replicas)
	}
	return rules
}

func (r rule) resource() policy.Resource {
	match := policy.Match{
		Kind: r.Match.Kind, Descriptions: listOf[string](r.Match.Description), LocationPaths: listOf[string](r.Match.LocationPath), Integrated: r.Match.Integrated, Detachable: r.Match.Detachable,
		MinMemory: r.Match.DedicatedMemory.Min.bytes(), MaxMemory: r.Match.DedicatedMemory.Max.bytes(),
		MinDriver: r.Match.DriverVersion.Min.fill(0), MaxDriver: r.Match.DriverVersion.Max.fill(highest),
	}
	for _, id := range r.Match.Vendor {
		if !slices.Contains(match.Vendors, uint16(id)) {
			match.Vendors = append(match.Vendors, uint16(id))
		}
	}
	return policy.Resource{
		Name: string(r.Name), Match: match, Replicas: r.Replicas, AllocationPolicy: cmp.Or(r.AllocationPolicy, policy.Distributed),
		MaxPerContainer: r.MaxPerContainer, MixedDrivers: r.MixedDrivers == "allow",
	}
}

// listOf returns texts as values of another type.
func listOf[T, S ~string](texts []S) (list []T) {
	for _, text := range texts {
		list = append(list, T(text))
	}
	return list
}

// checkRules checks the rules together.
func checkRules(d *document, rules []policy.Resource) {
	first, byKey := map[string]int{}, map[string]string{}
	for i, r := range rules {
		path := fmt.Sprintf("resources[%d]", i)
		if j := slices.IndexFunc(rules[:i], func(earlier policy.Resource) bool { return covers(earlier.Match, r.Match) }); j >= 0 {
			d.fail(path, "matches no GPU that resources[%d] does not match first: move it before that rule, or make that rule match less", j)
		}
		j, seen := first[r.Name]
		if !seen {
			first[r.Name] = i
			for _, key := range []string{allocation.EnvKey(r.Name), allocation.AnnotationKey(r.Name)} {
				if other, taken := byKey[key]; taken && other != r.Name {
					d.fail(path, "the names %s and %s are too similar: both map to %s", other, r.Name, key)
					break
				}
				byKey[key] = r.Name
			}
			continue
		}
		other := rules[j]
		if r.AllocationPolicy != other.AllocationPolicy || r.MaxPerContainer != other.MaxPerContainer || r.MixedDrivers != other.MixedDrivers {
			d.fail(path, "%s is also the resource of resources[%d]: allocationPolicy, maxPerContainer and mixedDrivers must be the same in both", r.Name, j)
		}
	}
}

// covers reports whether m matches every GPU that n matches: it is the same, or has no
// condition but the kind.
func covers(m, n policy.Match) bool {
	return reflect.DeepEqual(m, n) || reflect.DeepEqual(m, policy.Match{Kind: m.Kind}) && (m.Kind == "" || m.Kind == n.Kind)
}

// runtimeFiles returns the built-in entries that are not disabled, and the file's
// own in the order of vendor IDs.
func runtimeFiles(byVendor map[vendor]vendorFiles) []policy.RuntimeFiles {
	list := policy.DefaultRuntimeFiles()
	for _, id := range slices.Sorted(maps.Keys(byVendor)) {
		entry, own := byVendor[id], policy.RuntimeFiles{Vendor: uint16(id)}
		if entry.Defaults != nil && !*entry.Defaults {
			list = slices.DeleteFunc(list, func(r policy.RuntimeFiles) bool { return r.BuiltIn && r.Vendor == own.Vendor })
		}
		own.Remove = listOf[string](entry.Remove)
		for _, file := range entry.Add {
			own.Add = append(own.Add, policy.AddedFile{Source: string(file.Source), Directory: cmp.Or(file.Directory, policy.System32), Destination: string(file.Destination)})
		}
		if len(own.Remove)+len(own.Add) > 0 {
			list = append(list, own)
		}
	}
	return list
}

// extraMounts checks m and completes it.
func (c Compiler) extraMounts(d *document, m policy.ExtraMounts) policy.ExtraMounts {
	m.Configured = m.Sources != ""
	m.Sources = cmp.Or(m.Sources, policy.MountDriverStore)
	clean := func(key string, dirs []string, check func(string) error) {
		for i, dir := range dirs {
			var err error
			if dirs[i], err = cleanDirectory(c.NodeOS, dir); err == nil {
				err = check(dirs[i])
			}
			d.check(fmt.Sprintf("extraMounts.%s[%d]", key, i), err)
		}
	}
	clean("hostDirectories", m.HostDirectories, func(dir string) error {
		return checkHostDirectory(c.NodeOS, dir, append([]string{c.StateDir}, c.OwnDirs...))
	})
	clean("destinations", m.Destinations, func(string) error { return nil })
	if m.Sources == policy.MountHostDirectories && len(m.HostDirectories) == 0 {
		d.fail("extraMounts.sources", "%s needs extraMounts.hostDirectories", m.Sources)
	}
	return m
}
