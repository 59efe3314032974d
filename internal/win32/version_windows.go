package win32

import (
	"cmp"
	"fmt"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// WindowsBuild returns the build number of this Windows.
func WindowsBuild() uint32 { return windows.RtlGetVersion().BuildNumber }

// WindowsVersion returns the version of this Windows in one line, such as
// "Windows build 20348.2113 (Windows Server 2022 Datacenter 21H2)". The registry calls Windows 11 Windows 10.
func WindowsVersion() string {
	build := WindowsBuild()
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SOFTWARE\Microsoft\Windows NT\CurrentVersion`, registry.QUERY_VALUE)
	if err != nil {
		return fmt.Sprintf("Windows build %d", build)
	}
	defer func() { _ = key.Close() }()
	product, _, _ := key.GetStringValue("ProductName")
	release, _, _ := key.GetStringValue("DisplayVersion")
	formerly, _, _ := key.GetStringValue("ReleaseId")
	update, _, _ := key.GetIntegerValue("UBR")
	return fmt.Sprintf("Windows build %d.%d (%s %s)", build, update, product, cmp.Or(release, formerly))
}
