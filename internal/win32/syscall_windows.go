package win32

import (
	"errors"
	"fmt"

	"golang.org/x/sys/windows"
)

// Functions that golang.org/x/sys/windows does not have, or not as needed here, in the
// syntax of https://pkg.go.dev/golang.org/x/sys/windows/mkwinsyscall.
//
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupdigetdevicepropertyw
//sys	setupDiGetDeviceProperty(set windows.DevInfo, device *windows.DevInfoData, key *windows.DEVPROPKEY, propertyType *uint32, buffer *byte, size uint32, required *uint32, flags uint32) (err error) = setupapi.SetupDiGetDevicePropertyW
// https://learn.microsoft.com/windows/win32/api/setupapi/nf-setupapi-setupgetinfdriverstorelocationw
//sys	setupGetInfDriverStoreLocation(inf *uint16, platform uintptr, locale *uint16, buffer *uint16, size uint32, required *uint32) (err error) = setupapi.SetupGetInfDriverStoreLocationW
// https://learn.microsoft.com/windows/win32/api/dxcore/nf-dxcore-dxcorecreateadapterfactory
//sys	dxcoreCreateAdapterFactory(interfaceID *windows.GUID, factory **comObject) (result int32) = dxcore.DXCoreCreateAdapterFactory
// https://learn.microsoft.com/windows/win32/api/d3d12/nf-d3d12-d3d12createdevice
//sys	d3d12CreateDevice(adapter *comObject, minimumFeatureLevel uint32, interfaceID *windows.GUID, device **comObject) (result int32) = d3d12.D3D12CreateDevice
// https://learn.microsoft.com/virtualization/api/hcs/reference/hcsgetserviceproperties
//sys	hcsGetServiceProperties(query *uint16, properties **uint16) (result int32) = computecore.HcsGetServiceProperties

// available returns an error that matches [errors.ErrUnsupported] if this Windows does
// not have the function.
func available(proc *windows.LazyProc) error {
	err := proc.Find()
	if errors.Is(err, windows.ERROR_MOD_NOT_FOUND) || errors.Is(err, windows.ERROR_PROC_NOT_FOUND) {
		return fmt.Errorf("this Windows has no %s: %w", proc.Name, errors.ErrUnsupported)
	}
	if err != nil {
		return fmt.Errorf("load %s: %w", proc.Name, err)
	}
	return nil
}
