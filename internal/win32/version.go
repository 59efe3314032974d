package win32

import (
	"cmp"
	"fmt"
	"strings"
)

// Version is a version of Windows.
type Version struct {
	// Build is the build number and Revision that of the installed update, 0 if unknown.
	Build, Revision uint32
	// Product is the product's name ("Windows Server 2022 Datacenter") and Release the
	// feature update ("21H2"), "" if unknown.
	Product, Release string
}

// String returns v in one line, such as "Windows Server 2022 Datacenter 21H2 (build 20348.2113)".
func (v Version) String() string {
	product := strings.TrimSpace(cmp.Or(v.Product, "Windows") + " " + v.Release)
	return fmt.Sprintf("%s (build %d.%d)", product, v.Build, v.Revision)
}

// firstWindows11 is the first build of Windows 11, which the registry calls Windows 10.
// https://learn.microsoft.com/windows/release-health/windows11-release-information
const firstWindows11 = 22000

// product returns the product's name; name is the registry's.
func product(name string, build uint32) string {
	if rest, ok := strings.CutPrefix(name, "Windows 10"); ok && build >= firstWindows11 {
		return "Windows 11" + rest
	}
	return name
}
