package win32

import (
	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// WindowsBuild returns the build number of this Windows.
func WindowsBuild() uint32 { return windows.RtlGetVersion().BuildNumber }

// WindowsVersion returns the version of this Windows. Fields are empty if the registry does not have
// them.
func WindowsVersion() Version {
	v := Version{Build: WindowsBuild()}
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SOFTWARE\Microsoft\Windows NT\CurrentVersion`, registry.QUERY_VALUE)
	if err != nil {
		return v
	}
	defer func() { _ = key.Close() }()
	name, _, _ := key.GetStringValue("ProductName")
	v.Product = product(name, v.Build)
	if v.Release, _, err = key.GetStringValue("DisplayVersion"); err != nil {
		v.Release, _, _ = key.GetStringValue("ReleaseId") // the former name
	}
	if revision, _, err := key.GetIntegerValue("UBR"); err == nil {
		v.Revision = uint32(revision)
	}
	return v
}
