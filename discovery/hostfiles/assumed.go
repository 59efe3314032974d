package hostfiles

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Assumed replaces [Root] for a node whose files cannot be read. It assumes that every file
// exists and is not a link. Patterns with wildcards match no file, and device nodes have no numbers.
type Assumed struct{}

// MountSource returns path.
func (Assumed) MountSource(path string) (string, error) { return path, nil }

// Resolve returns path, as a regular file.
func (Assumed) Resolve(path string) (final string, regular bool, err error) {
	return path, true, nil
}

// SameContent returns true.
func (Assumed) SameContent(string, string) (bool, error) { return true, nil }

// DeviceNode returns a device node without numbers.
func (Assumed) DeviceNode(path string) (specs.LinuxDevice, error) {
	return specs.LinuxDevice{Path: path, Type: "c"}, nil
}

// Glob returns a pattern without wildcards, and nothing for others.
func (Assumed) Glob(_, pattern string) ([]string, error) {
	if winpath.HasWildcard(pattern) {
		return nil, nil
	}
	return []string{winpath.Clean(pattern)}, nil
}
