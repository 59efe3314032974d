package hostfiles

import (
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Assumed stands for the files of another node: every file exists and none is a
// link. It cannot resolve wildcards or the numbers of device nodes.
type Assumed struct{}

// ResolveAll returns paths.
func (Assumed) ResolveAll(paths []string) (resolved []string, errs []error) {
	return paths, make([]error, len(paths))
}

// Resolve returns path, as a regular file.
func (Assumed) Resolve(path string) (final string, regular bool, err error) { return path, true, nil }

// SameContent returns true.
func (Assumed) SameContent(string, string) (bool, error) { return true, nil }

// DeviceNode returns a device node without numbers.
func (Assumed) DeviceNode(path string) (specs.LinuxDevice, error) {
	return specs.LinuxDevice{Path: path, Type: "c"}, nil
}

// Glob returns a pattern without wildcards, and nothing for others.
func (Assumed) Glob(_, pattern string, limit int) ([]string, error) {
	if limit < 1 || strings.ContainsAny(pattern, "*?") {
		return nil, nil
	}
	return []string{winpath.Clean(pattern)}, nil
}
