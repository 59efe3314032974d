package config

import "directx-nri/internal/policy"

// Policy returns the part of c that decides what containers get. It is for the
// callers that do not use the compiled policy yet.
func (c Config) Policy() policy.Policy {
	p := policy.Policy{
		Assignment: policy.Assignment(c.Assignment), VisibilityHints: c.VisibilityHints,
		ExtraMounts: policy.ExtraMounts{
			Sources: policy.MountSources(c.ExtraMounts.Sources), HostDirectories: c.ExtraMounts.HostFolders,
			Destinations: c.ExtraMounts.Destinations, Max: c.ExtraMounts.Max,
		},
	}
	if c.ExtraMounts.Sources == MountHostFolders {
		p.ExtraMounts.Sources = policy.MountHostDirectories
	}
	for _, r := range c.RuntimeFiles {
		files := policy.RuntimeFiles{Vendor: r.Vendor, Remove: r.Remove}
		for _, a := range r.Add {
			files.Add = append(files.Add, policy.AddedFile{Source: a.Source, Directory: a.Folder, Destination: a.Destination})
		}
		p.RuntimeFiles = append(p.RuntimeFiles, files)
	}
	return p
}
