//go:build unix

package shim

import (
	"fmt"
	"syscall"
)

// exec replaces this process by the real shim at path.
func (s *shim) exec(path string) (int, error) {
	if err := syscall.Exec(path, append([]string{path}, s.args...), s.env); err != nil {
		return 0, fmt.Errorf("run %s: %w", path, err)
	}
	return 0, nil
}
