package win32

import (
	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// workstation is VER_NT_WORKSTATION; domain controllers and servers are others.
// https://learn.microsoft.com/windows/win32/api/winnt/ns-winnt-osversioninfoexw
const workstation = 1

// WindowsBuild returns the build number of this Windows.
func WindowsBuild() uint32 { return windows.RtlGetVersion().BuildNumber }

// WindowsVersion returns the version of this Windows. What the registry does not have
// is left out.
func WindowsVersion() Version {
	info := windows.RtlGetVersion()
	v := Version{Major: info.MajorVersion, Minor: info.MinorVersion, Build: info.BuildNumber, Server: info.ProductType != workstation}
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SOFTWARE\Microsoft\Windows NT\CurrentVersion`, registry.QUERY_VALUE)
	if err != nil {
		return v
	}
	defer func() { _ = key.Close() }()
	name, _, _ := key.GetStringValue("ProductName")
	v.Product = product(name, v.Build, v.Server)
	v.Edition, _, _ = key.GetStringValue("EditionID")
	if v.Release, _, err = key.GetStringValue("DisplayVersion"); err != nil {
		v.Release, _, _ = key.GetStringValue("ReleaseId") // the former name
	}
	if revision, _, err := key.GetIntegerValue("UBR"); err == nil {
		v.Revision = uint32(revision)
	}
	return v
}
