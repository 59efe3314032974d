package cli

import "golang.org/x/sys/windows"

const administratorName = "an administrator, in an elevated shell"

func isAdministrator() bool { return windows.GetCurrentProcessToken().IsElevated() }
