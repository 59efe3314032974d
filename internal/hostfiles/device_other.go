//go:build !linux

package hostfiles

import (
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// DeviceNode returns an error that matches [errors.ErrUnsupported].
func (r Root) DeviceNode(path string) (specs.LinuxDevice, error) {
	return specs.LinuxDevice{}, fmt.Errorf("device node %s: %w", path, errors.ErrUnsupported)
}
