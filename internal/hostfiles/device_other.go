//go:build !linux

package hostfiles

import (
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// checkMounts is for Linux only: hcsshim's mounts are read-only as a whole.
func checkMounts(string) error { return nil }

// DeviceNode returns an error that matches [errors.ErrUnsupported].
func (r Root) DeviceNode(path string) (specs.LinuxDevice, error) {
	return specs.LinuxDevice{}, fmt.Errorf("device node %s: %w", path, errors.ErrUnsupported)
}
