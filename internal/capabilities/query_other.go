//go:build !windows

package capabilities

import (
	"errors"
	"fmt"
)

// Ask returns what this Windows supports. On another system, the error matches
// [errors.ErrUnsupported].
func Ask() (Capabilities, error) {
	return Capabilities{}, fmt.Errorf("query Windows: %w", errors.ErrUnsupported)
}

// AskQuickly is [Ask].
func AskQuickly() (Capabilities, error) { return Ask() }
