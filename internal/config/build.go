package config

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// build returns the policy of f, which has the schema, and adds its problems to d.
func (c Compiler) build(d *document, f File) policy.Policy {
	preset := presets()[f.Preset]
	p := policy.Policy{
		Source:          policy.Source{Inventory: f.Inventory},
		Assignment:      cmp.Or(policy.Assignment(f.AssignmentMode), preset.assignment),
		DriverFiles:     policy.DriverFiles(f.DriverFiles),
		Injection:       policy.Injection(f.Injection),
		ServedBy:        cmp.Or(policy.ServedBy(f.ServedBy), policy.DefaultServedBy(c.NodeOS)),
		ExtraMounts:     c.extraMounts(d, f.ExtraMounts),
		VisibilityHints: f.VisibilityHints, FailOnInitError: f.FailOnInitError,
		MetricsAddress: f.Metrics.Address, Shim: f.Shim, Log: f.Log,
		RuntimeFiles:          runtimeFiles(d, f.RuntimeFiles),
		StandaloneEnvironment: f.Standalone.Environment,
		Resources:             resources(d, f, preset),
	}
	for path, value := range map[string]string{"inventory": f.Inventory, "shim.log": f.Shim.Log} {
		if value != "" && !filepath.IsAbs(value) {
			d.fail(path, "%q is not an absolute path", value)
		}
	}
	if r := f.Shim.Runtime; r != "" && !filepath.IsAbs(r) && filepath.Base(r) != r {
		d.fail("shim.runtime", "%q is neither an absolute path nor a file name", r)
	} else if c.CheckRuntime != nil && !c.Inspect {
		d.check("shim.runtime", c.CheckRuntime(c.StateDir, r))
	}
	return policy.WithShimLog(p, c.StateDir)
}

// presets returns the presets by name. "" is that of a node without one.
func presets() map[string]preset {
	no := false
	discrete := policy.DefaultResources()
	for i := range discrete {
		discrete[i].Match.Integrated, discrete[i].Match.Detachable = &no, &no
	}
	display := func(name string, descriptions ...string) []policy.Resource {
		return []policy.Resource{{Name: name, Match: policy.Match{Kind: "display", Descriptions: descriptions}, Policy: policy.Distributed}}
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
func resources(d *document, f File, preset preset) []policy.Resource {
	rules := preset.resources
	if f.Resources != nil {
		rules = nil
		if f.Preset != "" {
			d.fail("preset", "resources and preset exclude each other: remove one of them")
		}
		for i, r := range f.Resources {
			rules = append(rules, r.resource(d, fmt.Sprintf("resources[%d]", i)))
		}
		checkRules(d, rules)
	}
	for i := range rules {
		rules[i].Replicas = cmp.Or(rules[i].Replicas, f.Replicas)
	}
	return rules
}

func (r rule) resource(d *document, path string) policy.Resource {
	d.check(join(path, "name"), checkResourceName(r.Name))
	return policy.Resource{
		Name: r.Name, Match: r.Match.match(d, path+".match"), Replicas: r.Replicas, Policy: cmp.Or(policy.AllocationPolicy(r.AllocationPolicy), policy.Distributed),
		MaxPerContainer: r.MaxPerContainer, MixedDrivers: r.MixedDrivers == "allow",
	}
}

func (m match) match(d *document, path string) policy.Match {
	p := policy.Match{Kind: m.Kind, Descriptions: m.Description, LocationPaths: m.LocationPath, Integrated: m.Integrated, Detachable: m.Detachable}
	for _, text := range m.Vendor {
		if id, err := parseVendor(text); d.check(path+".vendor", err) && !slices.Contains(p.Vendors, id) {
			p.Vendors = append(p.Vendors, id)
		}
	}
	var err error
	memory := func(key string, bound scalar) (n uint64) {
		if bound != "" {
			n, err = parseMemory(string(bound))
			d.checkBound(path+".dedicatedMemory."+key, err, n == 0)
		}
		return n
	}
	version := func(key string, bound scalar, missing uint16) (v policy.DriverVersion) {
		if bound != "" {
			v, err = policy.ParseDriverVersion(string(bound), missing)
			d.checkBound(path+".driverVersion."+key, err, v == policy.DriverVersion{})
		}
		return v
	}
	p.MinMemory, p.MaxMemory = memory("min", m.DedicatedMemory.Min), memory("max", m.DedicatedMemory.Max)
	p.MinDriver, p.MaxDriver = version("min", m.DriverVersion.Min, 0), version("max", m.DriverVersion.Max, 1<<16-1)
	if p.MaxMemory != 0 && p.MaxMemory < p.MinMemory {
		d.fail(path+".dedicatedMemory", "max is less than min")
	}
	if p.MaxDriver != (policy.DriverVersion{}) && p.MaxDriver.Less(p.MinDriver) {
		d.fail(path+".driverVersion", "max is less than min")
	}
	return p
}

// checkBound adds err, or that the bound is 0, as a problem with the key at path.
func (d *document) checkBound(path string, err error, zero bool) {
	if d.check(path, err) && zero {
		d.fail(path, "0 is not a bound: remove the key")
	}
}

// parseMemory returns a number of bytes, which may have a unit: 15Gi, 15GiB, 16106127360.
func parseMemory(text string) (uint64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not an amount of memory: use bytes, or a unit as in 15Gi", text)
	}
	return n, nil
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
		if r.Policy != other.Policy || r.MaxPerContainer != other.MaxPerContainer || r.MixedDrivers != other.MixedDrivers {
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
func runtimeFiles(d *document, byVendor map[string]vendorFiles) []policy.RuntimeFiles {
	own := map[uint16]policy.RuntimeFiles{}
	list := policy.DefaultRuntimeFiles()
	for _, vendor := range slices.Sorted(maps.Keys(byVendor)) {
		path := "runtimeFiles." + vendor
		id, err := parseVendor(vendor)
		if !d.check(path, err) {
			continue
		}
		if _, twice := own[id]; twice {
			d.fail(path, "the vendor has two entries")
		}
		entry := byVendor[vendor]
		files := policy.RuntimeFiles{Vendor: id}
		if entry.Defaults != nil && !*entry.Defaults {
			list = slices.DeleteFunc(list, func(r policy.RuntimeFiles) bool { return r.Vendor == id })
		}
		for i, pattern := range entry.Remove {
			clean, err := cleanSource(pattern)
			d.check(fmt.Sprintf("%s.remove[%d]", path, i), err)
			files.Remove = append(files.Remove, clean)
		}
		for i, file := range entry.Add {
			files.Add = append(files.Add, checkAdded(d, fmt.Sprintf("%s.add[%d]", path, i), file))
		}
		own[id] = files
	}
	for _, id := range slices.Sorted(maps.Keys(own)) {
		if len(own[id].Remove)+len(own[id].Add) > 0 {
			list = append(list, own[id])
		}
	}
	return list
}

// checkAdded checks a file and completes it.
func checkAdded(d *document, path string, a policy.AddedFile) policy.AddedFile {
	pattern, err := strings.ContainsAny(a.Source, "*?"), error(nil)
	a.Source, err = cleanSource(a.Source)
	d.check(path, err)
	a.Directory = cmp.Or(a.Directory, policy.System32)
	if a.Destination != "" {
		d.check(path+".destination", checkFileName(a.Destination))
		if pattern {
			d.fail(path+".destination", "one name for what can be several files: remove it, or name the source without * and ?")
		}
	}
	return a
}

// extraMounts checks m and completes it.
func (c Compiler) extraMounts(d *document, m policy.ExtraMounts) policy.ExtraMounts {
	m.Configured = d.root != nil && d.node("extraMounts.sources") != d.node("extraMounts")
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
