package config

import (
	"cmp"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// policyOf returns the policy of a valid document, in which it writes shorthands in full.
func policyOf(document any, nodeOS string) (policy.Policy, error) {
	for _, key := range []string{"vendor", "description", "locationPath"} {
		edit(document, "resources.*.match."+key, asList)
	}
	edit(document, "resources.*.match.dedicatedMemory.*", asBytes)
	edit(document, "runtimeFiles.*.add.*", asMapping("source"))
	if nodeOS == "windows" {
		edit(document, "extraMounts.hostDirectories.*", asWindowsPath)
		edit(document, "extraMounts.destinations.*", asWindowsPath)
	}
	f := struct {
		Inventory, Preset string
		Replicas          int
		policy.Policy
	}{Replicas: 1, Policy: policy.Default()}
	f.Resources, f.Assignment, f.ExtraMounts.Sources = nil, "", "" // These defaults depend on other keys.
	var presets map[string]policy.Policy
	text, _ := files.ReadFile("presets.yaml") // It is embedded.
	if err := cmp.Or(decode(document, &f), yaml.Unmarshal(text, &presets)); err != nil {
		return policy.Policy{}, err
	}
	p, preset := f.Policy, presets[f.Preset]
	p.CompiledFrom.Inventory = f.Inventory
	p.Assignment = cmp.Or(p.Assignment, preset.Assignment)
	if p.Resources == nil {
		p.Resources = preset.Resources
	}
	for i, r := range p.Resources {
		p.Resources[i].Replicas = cmp.Or(r.Replicas, f.Replicas)
		p.Resources[i].AllocationPolicy = cmp.Or(r.AllocationPolicy, policy.Distributed)
		p.Resources[i].MixedDrivers = cmp.Or(r.MixedDrivers, policy.RefuseMixed)
	}
	p.ExtraMounts.Sources = cmp.Or(p.ExtraMounts.Sources, policy.MountSourcesDriverStore)
	return p, nil
}

// asWindowsPath returns a path with \ as its separator, without a separator at its end.
func asWindowsPath(value any) any { return winpath.Clean(fmt.Sprint(value)) }

// check returns the errors in a policy that the schema does not find.
func (c Compiler) check(p policy.Policy) error {
	var found problems
	inventory := p.CompiledFrom.Inventory
	isAbs := filepath.IsAbs(inventory) ||
		c.NodeOS == "linux" && strings.HasPrefix(inventory, "/") || c.NodeOS == "windows" && winpath.IsAbs(inventory)
	if inventory != "" && !isAbs { // The schema accepts the form of both systems.
		found.add("inventory", "%q is not an absolute path", inventory)
	}
	if p.Injection == policy.InjectByNRI && c.NodeOS == "windows" {
		found.add("injection", "containerd calls no NRI plugin on Windows: use shim or kubelet")
	}
	for i, r := range p.Resources {
		path, memory, version := fmt.Sprintf("resources[%d]", i), r.Match.DedicatedMemory, r.Match.DriverVersion
		if memory.Max != 0 && memory.Max < memory.Min {
			found.add(path+".match.dedicatedMemory", "max is less than min")
		}
		if version.Max.Compare(version.Min) < 0 {
			found.add(path+".match.driverVersion", "max is less than min")
		}
		for n, earlier := range p.Resources[:i] {
			key := allocation.AnnotationKey(r.Name)
			switch {
			case covers(earlier.Match, r.Match):
				found.add(path, "matches no GPU that resources[%d] does not match first: move it before that rule, or make that rule match less", n)
			case earlier.Name != r.Name && key == allocation.AnnotationKey(earlier.Name):
				found.add(path, "the names %s and %s are too similar: both map to %s", earlier.Name, r.Name, key)
			case earlier.Name == r.Name && (earlier.AllocationPolicy != r.AllocationPolicy ||
				earlier.MaxPerContainer != r.MaxPerContainer || earlier.MixedDrivers != r.MixedDrivers):
				found.add(path, "%s is also the resource of resources[%d]: allocationPolicy, maxPerContainer and mixedDrivers must be the same in both", r.Name, n)
			}
		}
	}
	mounts := p.ExtraMounts
	if mounts.Sources == policy.MountSourcesHostDirectories && len(mounts.HostDirectories) == 0 {
		found.add("extraMounts.sources", "%s needs extraMounts.hostDirectories", mounts.Sources)
	}
	for i, dir := range mounts.Destinations {
		if err := checkDirectory(c.NodeOS, dir); err != nil {
			found.add(fmt.Sprintf("extraMounts.destinations[%d]", i), "%v", err)
		}
	}
	for i, dir := range mounts.HostDirectories {
		if err := checkHostDirectory(c.NodeOS, dir, append([]string{c.StateDir}, c.ReservedDirs...)); err != nil {
			found.add(fmt.Sprintf("extraMounts.hostDirectories[%d]", i), "%v", err)
		}
	}
	return found.err()
}

// covers reports whether m is known to match every GPU that n matches: it is equal to n, or has no
// condition except the kind.
func covers(m, n policy.Match) bool {
	return reflect.DeepEqual(m, n) || reflect.DeepEqual(m, policy.Match{Kind: m.Kind}) && (m.Kind == "" || m.Kind == n.Kind)
}
