//go:build !windows

package capabilities

import "errors"

// Query returns what this Windows supports.
func Query() Capabilities { return Capabilities{HCSErr: errors.ErrUnsupported} }

// Build returns the build number of this Windows, 0 on another system.
func Build() uint32 { return 0 }
