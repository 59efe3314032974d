//go:build !windows

package win32

import "errors"

// WindowsBuild returns 0: this is not Windows.
func WindowsBuild() uint32 { return 0 }

// WindowsVersion returns "": this is not Windows.
func WindowsVersion() string { return "" }

// HCSProperties returns [errors.ErrUnsupported]: this is not Windows.
func HCSProperties() (string, error) { return "", errors.ErrUnsupported }
