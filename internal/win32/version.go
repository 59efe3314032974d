package win32

import (
	"fmt"
	"strings"
)

// Version is a version of Windows.
type Version struct {
	Major, Minor, Build uint32
	// Revision is the number of the installed update, 0 if unknown.
	Revision uint32
	// Server marks Windows Server.
	Server bool
	// Product is the product's name ("Windows Server 2022 Datacenter"), "" if unknown.
	Product string
	// Edition is the edition's ID ("ServerDatacenter").
	Edition string
	// Release is the feature update ("21H2"), "" if unknown.
	Release string
}

// String returns v in one line: "Windows Server 2022 Datacenter 21H2 (build
// 20348.2113)".
func (v Version) String() string {
	product := v.Product
	if product == "" {
		product = "Windows"
	}
	if v.Release != "" {
		product += " " + v.Release
	}
	return fmt.Sprintf("%s (build %d.%d)", product, v.Build, v.Revision)
}

// firstWindows11 is the first build of Windows 11, which the registry calls Windows 10.
// https://learn.microsoft.com/windows/release-health/windows11-release-information
const firstWindows11 = 22000

// product returns the product's name; name is the registry's.
func product(name string, build uint32, server bool) string {
	if rest, ok := strings.CutPrefix(name, "Windows 10"); ok && !server && build >= firstWindows11 {
		return "Windows 11" + rest
	}
	return name
}
