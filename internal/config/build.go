package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"directx-nri/internal/allocation"
	"directx-nri/internal/policy"
)

const maxRules = 256

// build returns the policy of f and adds its problems to d.
func (c Compiler) build(d *document, f File) policy.Policy {
	known := presets()
	preset, found := known[f.Preset]
	if !found {
		d.fail("preset", "%q is not one of %s", f.Preset, strings.Join(slices.Sorted(maps.Keys(known))[1:], ", "))
		return policy.Policy{}
	}
	if f.AssignmentMode == "" {
		f.AssignmentMode = string(preset.assignment)
	}
	if f.ServedBy == "" {
		f.ServedBy = string(policy.DefaultServedBy(c.NodeOS))
	}
	p := policy.Policy{
		Source:          policy.Source{Inventory: f.Inventory},
		Assignment:      oneOf(d, "assignmentMode", f.AssignmentMode, policy.Assignments()...),
		Injection:       oneOf(d, "injection", f.Injection, policy.Injections()...),
		ServedBy:        oneOf(d, "servedBy", f.ServedBy, policy.Servers()...),
		ExtraMounts:     c.extraMounts(d, f.ExtraMounts),
		VisibilityHints: f.VisibilityHints, FailOnInitError: f.FailOnInitError,
		MetricsAddress: f.Metrics.Address, Shim: policy.Shim(f.Shim),
		Log: policy.Log{
			Level:  oneOf(d, "log.level", f.Log.Level, "error", "warn", "info", "debug"),
			Format: oneOf(d, "log.format", f.Log.Format, "text", "json"),
		},
	}
	inRange(d, "replicas", f.Replicas, policy.MaxReplicas)
	d.check("metrics.address", checkAddress(f.Metrics.Address))
	for path, value := range map[string]string{"inventory": f.Inventory, "shim.log": f.Shim.Log} {
		if value != "" && !filepath.IsAbs(value) {
			d.fail(path, "%q is not an absolute path", value)
		}
	}
	if r := f.Shim.Runtime; r != "" && !filepath.IsAbs(r) && filepath.Base(r) != r {
		d.fail("shim.runtime", "%q is neither an absolute path nor a file name", r)
	}
	p.RuntimeFiles = runtimeFiles(d, f.RuntimeFiles)
	p.Resources = resources(d, f, preset)
	return p
}

func oneOf[T ~string](d *document, path, value string, choices ...T) T {
	if !slices.Contains(choices, T(value)) {
		d.fail(path, "%q is not one of %s", value, strings.Join(strings.Fields(strings.Trim(fmt.Sprint(choices), "[]")), ", "))
	}
	return T(value)
}

func inRange(d *document, path string, n integer, most int) int {
	if n < 1 || int(n) > most {
		d.fail(path, "%d is out of range: use 1 to %d", n, most)
	}
	return int(n)
}

// checkAddress checks host:port. The host may be empty.
func checkAddress(address string) error {
	if address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if n, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || n == 0 ||
		host != "" && net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(strings.ToLower(host))) > 0 {
		return fmt.Errorf("%q is not host:port: use 127.0.0.1:9400, or :9400 for all addresses of the node", address)
	}
	return nil
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
	var rules []policy.Resource
	switch {
	case f.Resources == nil:
		rules = preset.resources
	case f.Preset != "":
		d.fail("resources", "resources and preset exclude each other: remove one of them")
	case len(f.Resources) == 0:
		d.fail("resources", "the list is empty, so no GPU is offered: add a rule, or remove the key for the defaults")
	case len(f.Resources) > maxRules:
		d.fail("resources", "%d rules: at most %d are allowed", len(f.Resources), maxRules)
	default:
		for i, r := range f.Resources {
			rules = append(rules, r.resource(d, fmt.Sprintf("resources[%d]", i)))
		}
		checkRules(d, rules)
	}
	for i := range rules {
		if rules[i].Replicas == 0 {
			rules[i].Replicas = int(f.Replicas)
		}
	}
	return rules
}

func (r rule) resource(d *document, path string) policy.Resource {
	resource := policy.Resource{Name: r.Name, Match: r.Match.match(d, path+".match"), Policy: policy.Distributed}
	d.check(join(path, "name"), checkResourceName(r.Name))
	if r.Replicas != nil {
		resource.Replicas = inRange(d, path+".replicas", *r.Replicas, policy.MaxReplicas)
	}
	if r.AllocationPolicy != "" {
		resource.Policy = oneOf(d, path+".allocationPolicy", r.AllocationPolicy, policy.Distributed, policy.Packed)
	}
	if r.MaxPerContainer != nil {
		resource.MaxPerContainer = inRange(d, path+".maxPerContainer", *r.MaxPerContainer, 1<<20)
	}
	if r.MixedDrivers != "" {
		resource.MixedDrivers = oneOf(d, path+".mixedDrivers", r.MixedDrivers, "refuse", "allow") == "allow"
	}
	return resource
}

func (m match) match(d *document, path string) policy.Match {
	p := policy.Match{Descriptions: m.Description, LocationPaths: m.LocationPath, Integrated: m.Integrated, Detachable: m.Detachable}
	if m.Kind != "" {
		p.Kind = oneOf(d, path+".kind", m.Kind, "display", "compute")
	}
	for _, text := range m.Vendor {
		if id, err := parseVendor(text); d.check(path+".vendor", err) && !slices.Contains(p.Vendors, id) {
			p.Vendors = append(p.Vendors, id)
		}
	}
	for key, patterns := range map[string]texts{"description": m.Description, "locationPath": m.LocationPath} {
		for _, pattern := range patterns {
			if strings.TrimSpace(pattern) != pattern || len(pattern) > 256 {
				d.fail(path+"."+key, "%q is not a pattern of at most 256 bytes without white space at its ends", pattern)
			}
		}
	}
	for _, bound := range []struct {
		key, text string
		to        *uint64
	}{{"min", m.DedicatedMemory.Min, &p.MinMemory}, {"max", m.DedicatedMemory.Max, &p.MaxMemory}} {
		if bound.text != "" {
			n, err := parseMemory(bound.text)
			if err == nil && n == 0 {
				err = errors.New("0 is not a bound: remove the key")
			}
			d.check(path+".dedicatedMemory."+bound.key, err)
			*bound.to = n
		}
	}
	for _, bound := range []struct {
		key, text string
		missing   uint16
		to        *policy.DriverVersion
	}{{"min", m.DriverVersion.Min, 0, &p.MinDriver}, {"max", m.DriverVersion.Max, 1<<16 - 1, &p.MaxDriver}} {
		if bound.text != "" {
			version, err := policy.ParseDriverVersion(bound.text, bound.missing)
			if err == nil && version == (policy.DriverVersion{}) {
				err = errors.New("0 is not a bound: remove the key")
			}
			d.check(path+".driverVersion."+bound.key, err)
			*bound.to = version
		}
	}
	if p.MaxMemory != 0 && p.MaxMemory < p.MinMemory {
		d.fail(path+".dedicatedMemory", "max is less than min")
	}
	if p.MaxDriver != (policy.DriverVersion{}) && p.MaxDriver.Less(p.MinDriver) {
		d.fail(path+".driverVersion", "max is less than min")
	}
	return p
}

// parseMemory returns the number of bytes of a Kubernetes quantity, which may have
// a B behind its unit: 15Gi, 15GiB, 16106127360.
func parseMemory(text string) (uint64, error) {
	unit := text
	if strings.HasSuffix(text, "iB") {
		unit = strings.TrimSuffix(text, "B")
	}
	quantity, err := resource.ParseQuantity(unit)
	n, exact := quantity.AsInt64()
	if err != nil || !exact || n < 0 {
		return 0, fmt.Errorf("%q is not an amount of memory: use bytes, or a unit as in 15Gi", text)
	}
	return uint64(n), nil
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

// covers reports whether m matches every GPU that n matches, as far as the two
// alone can show: false is no proof of the contrary.
func covers(m, n policy.Match) bool {
	within := func(outer, inner []string) bool {
		return len(outer) == 0 || len(inner) > 0 && !slices.ContainsFunc(inner, func(s string) bool {
			return !slices.ContainsFunc(outer, func(o string) bool { return strings.Trim(o, "*") == "" || strings.EqualFold(o, s) })
		})
	}
	same := func(outer, inner *bool) bool { return outer == nil || inner != nil && *outer == *inner }
	none := policy.DriverVersion{}
	return (m.Kind == "" || m.Kind == n.Kind) &&
		(len(m.Vendors) == 0 || len(n.Vendors) > 0 && !slices.ContainsFunc(n.Vendors, func(id uint16) bool { return !slices.Contains(m.Vendors, id) })) &&
		within(m.Descriptions, n.Descriptions) && within(m.LocationPaths, n.LocationPaths) &&
		m.MinMemory <= n.MinMemory && (m.MaxMemory == 0 || n.MaxMemory != 0 && n.MaxMemory <= m.MaxMemory) &&
		(m.MinDriver == none && m.MaxDriver == none || (n.MinDriver != none || n.MaxDriver != none) &&
			!n.MinDriver.Less(m.MinDriver) && (m.MaxDriver == none || n.MaxDriver != none && !m.MaxDriver.Less(n.MaxDriver))) &&
		same(m.Integrated, n.Integrated) && same(m.Detachable, n.Detachable)
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
			files.Add = append(files.Add, file.added(d, fmt.Sprintf("%s.add[%d]", path, i)))
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

func (a addedFile) added(d *document, path string) policy.AddedFile {
	source, err := cleanSource(a.Source)
	d.check(path, err)
	file := policy.AddedFile{Source: source, Directory: policy.System32, Destination: a.Destination}
	if a.Directory != "" {
		file.Directory = oneOf(d, path+".directory", a.Directory, policy.System32, policy.SysWOW64)
	}
	if a.Destination != "" {
		d.check(path+".destination", checkFileName(a.Destination))
		if strings.ContainsAny(a.Source, "*?") {
			d.fail(path+".destination", "one name for what can be several files: remove it, or name the source without * and ?")
		}
	}
	return file
}

func (c Compiler) extraMounts(d *document, m extraMounts) policy.ExtraMounts {
	p := policy.ExtraMounts{
		Sources: oneOf(d, "extraMounts.sources", m.Sources, policy.AllMountSources()...),
		Max:     inRange(d, "extraMounts.max", m.Max, 1024),
	}
	for i, dir := range m.HostDirectories {
		clean, err := cleanDirectory(c.NodeOS, dir)
		if err == nil {
			err = checkHostDirectory(c.NodeOS, clean, append([]string{c.StateDir}, c.OwnDirs...))
		}
		d.check(fmt.Sprintf("extraMounts.hostDirectories[%d]", i), err)
		p.HostDirectories = append(p.HostDirectories, clean)
	}
	for i, dir := range m.Destinations {
		clean, err := cleanDirectory(c.NodeOS, dir)
		d.check(fmt.Sprintf("extraMounts.destinations[%d]", i), err)
		p.Destinations = append(p.Destinations, clean)
	}
	if m.Destinations != nil && len(m.Destinations) == 0 {
		d.fail("extraMounts.destinations", "the list is empty: remove the key for the defaults, or set extraMounts.sources: off")
	}
	if p.Sources == policy.MountHostDirectories && len(p.HostDirectories) == 0 {
		d.fail("extraMounts.sources", "%s needs extraMounts.hostDirectories", p.Sources)
	}
	return p
}
