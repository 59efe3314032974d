//go:build unix

package cli

import "os"

// IsAdministrator reports whether the process runs as root, or on Windows elevated.
func IsAdministrator() bool { return os.Geteuid() == 0 }
