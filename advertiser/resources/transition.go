package resources

import (
	"directx-nri/internal/config"
	"directx-nri/internal/policy"
)

// FromConfig returns rules of the configuration as those of the policy. It goes with
// the last program that reads the configuration without compiling it.
func FromConfig(rules []config.Resource) []policy.Resource {
	var list []policy.Resource
	for _, r := range rules {
		m := policy.Match{
			Kind: r.Match.Kind, Vendors: r.Match.Vendors, Descriptions: r.Match.Descriptions, LocationPaths: r.Match.LocationPaths,
			MinMemory: r.Match.MinMemory, MaxMemory: r.Match.MaxMemory, Integrated: r.Match.Integrated, Detachable: r.Match.Detachable,
			MinDriver: policy.DriverVersion(r.Match.MinDriver), MaxDriver: policy.DriverVersion(r.Match.MaxDriver),
		}
		list = append(list, policy.Resource{
			Name: r.Name, Match: m, Replicas: r.Replicas, Policy: policy.AllocationPolicy(r.Policy), MaxPerContainer: r.MaxPerContainer, MixedDrivers: r.MixedDrivers,
		})
	}
	return list
}
