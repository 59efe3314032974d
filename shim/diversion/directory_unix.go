//go:build unix

package diversion

import "errors"

// Find returns an error that matches [errors.ErrUnsupported]: the runhcs shim is for Windows.
func Find() (string, error) { return "", errors.ErrUnsupported }
