package hostfiles

import (
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/internal/winpath"
)

// Assumed stands for the files of a node that is not this one: each is there,
// under its own name, and none is a link. What cannot be known without looking
// is left out: which files fit a pattern, and a device node's numbers.
type Assumed struct{}

// Resolve returns path.
func (Assumed) Resolve(path string) (string, error) {
	if winpath.IsAbs(path) {
		return winpath.Clean(path), nil
	}
	return path, nil
}

// Final returns path, as that of a file.
func (a Assumed) Final(path string) (final string, regular bool, err error) {
	final, err = a.Resolve(path)
	return final, true, err
}

// SameContent takes two files for copies of each other.
func (Assumed) SameContent(string, string) (bool, error) { return true, nil }

// DeviceNode returns a device node without numbers.
func (Assumed) DeviceNode(path string) (specs.LinuxDevice, error) {
	return specs.LinuxDevice{Path: path, Type: "c"}, nil
}

// Glob returns a pattern that stands for one file, and nothing for others.
func (Assumed) Glob(_, pattern string, limit int) ([]string, error) {
	if limit < 1 || strings.ContainsAny(pattern, "*?") {
		return nil, nil
	}
	return []string{winpath.Clean(pattern)}, nil
}
