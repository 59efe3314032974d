package win32

// The declarations of dxcore.h and dxcore_interface.h. A slot is an index of an
// interface's function table: IUnknown's functions come first, then those of the
// header in its order.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore-reference
// https://github.com/microsoft/DirectX-Headers (include/directx/dxcore_interface.h)
const (
	slotRelease = 2 // of IUnknown

	slotFactoryCreateAdapterList = 3
	slotFactoryGetAdapterByLuid  = 4
	factorySlots                 = 8

	slotListGetAdapter      = 3
	slotListGetAdapterCount = 4
	listSlots               = 9

	slotAdapterIsAttributeSupported = 4
	slotAdapterIsPropertySupported  = 5
	slotAdapterGetProperty          = 6
	slotAdapterGetPropertySize      = 7
	adapterSlots                    = 13
)

// AdapterAttribute is a capability of adapters.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore-adapter-attribute-guids
type AdapterAttribute struct {
	name string
	id   GUID
}

func (a AdapterAttribute) String() string { return a.name }

// D3D11Graphics is Direct3D 11 graphics.
func D3D11Graphics() AdapterAttribute {
	return AdapterAttribute{"Direct3D 11 graphics", parseGUID("8c47866b-7583-450d-f0f0-6bada895af4b")}
}

// D3D12Graphics is Direct3D 12 graphics.
func D3D12Graphics() AdapterAttribute {
	return AdapterAttribute{"Direct3D 12 graphics", parseGUID("0c9ece4d-2f6e-4f01-8c96-e89e331b47b1")}
}

// D3D12CoreCompute is Direct3D 12 core compute, with or without graphics.
func D3D12CoreCompute() AdapterAttribute {
	return AdapterAttribute{"Direct3D 12 core compute", parseGUID("248e2800-a793-4724-abaa-23a6de1be090")}
}

// D3D12GenericML is machine learning with Direct3D 12, which neural processors can have
// without core compute. It is in the SDK since Windows build 26100.
// https://github.com/microsoft/DirectX-Headers/releases/tag/v1.614.0
func D3D12GenericML() AdapterAttribute {
	return AdapterAttribute{"Direct3D 12 machine learning", parseGUID("b71b0d41-1088-422f-a27c-0250b7d3a988")}
}

// AdapterProperty is a DXCoreAdapterProperty.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/ne-dxcore_interface-dxcoreadapterproperty
type AdapterProperty uint32

// The properties, with their types.
const (
	InstanceLUID           AdapterProperty = 0  // uint64, HighPart in the upper half
	DriverDescription      AdapterProperty = 2  // UTF-8 text with a terminator
	DedicatedAdapterMemory AdapterProperty = 7  // uint64, bytes
	IsHardware             AdapterProperty = 11 // bool, one byte
	IsIntegrated           AdapterProperty = 12 // bool, one byte
	IsDetachable           AdapterProperty = 13 // bool, one byte
)
