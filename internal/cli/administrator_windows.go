package cli

import "golang.org/x/sys/windows"

const administratorName = "an administrator, in an elevated shell"

// IsAdministrator reports whether the process runs as root, or on Windows elevated.
func IsAdministrator() bool { return windows.GetCurrentProcessToken().IsElevated() }
