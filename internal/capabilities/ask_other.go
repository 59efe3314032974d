//go:build !windows

package capabilities

import (
	"errors"
	"fmt"
)

// Ask returns what the Windows that this program runs on can do. An error matches
// [errors.ErrUnsupported] and tells that this is no Windows.
func Ask() (Capabilities, error) {
	return Capabilities{}, fmt.Errorf("ask Windows what it can do: this is another system: %w", errors.ErrUnsupported)
}

// AskQuickly is [Ask].
func AskQuickly() (Capabilities, error) { return Ask() }
