package win32

import (
	"fmt"
	"strings"
)

// Version says which Windows this is.
type Version struct {
	Major, Minor, Build uint32
	// Revision is the installed update's number, 0 when it is not known.
	Revision uint32
	// Server tells Windows Server.
	Server bool
	// Product is the name a person knows it by ("Windows Server 2022 Datacenter"),
	// "" when it is not known.
	Product string
	// Edition is Windows' own name of the edition ("ServerDatacenter").
	Edition string
	// Release is the feature update ("21H2"), "" when it is not known.
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

// firstWindows11 is the build from which a Windows that is no server is called
// Windows 11. The registry goes on to call it Windows 10.
// https://learn.microsoft.com/windows/release-health/windows11-release-information
const firstWindows11 = 22000

// product returns what a person knows a Windows by, of which the registry says
// name.
func product(name string, build uint32, server bool) string {
	if rest, ok := strings.CutPrefix(name, "Windows 10"); ok && !server && build >= firstWindows11 {
		return "Windows 11" + rest
	}
	return name
}
