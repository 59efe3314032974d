package cli

import "golang.org/x/sys/windows"

// IsAdministrator reports whether the process runs as root, or on Windows elevated.
func IsAdministrator() bool { return windows.GetCurrentProcessToken().IsElevated() }
