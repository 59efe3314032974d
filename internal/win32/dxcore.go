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

func iidDXCoreAdapterFactory() GUID {
	return GUID{0x78ee5945, 0xc36e, 0x4b13, [8]byte{0xa6, 0x69, 0x00, 0x5d, 0xd1, 0x1c, 0x0f, 0x06}}
}

func iidDXCoreAdapterList() GUID {
	return GUID{0x526c7776, 0x40e9, 0x459b, [8]byte{0xb7, 0x11, 0xf3, 0x2a, 0xd7, 0x6d, 0xfc, 0x28}}
}

func iidDXCoreAdapter() GUID {
	return GUID{0xf0db4c7f, 0xfe5a, 0x42a2, [8]byte{0xbd, 0x62, 0xf2, 0xa6, 0xcf, 0x6f, 0xc8, 0x3e}}
}

// AdapterAttribute is a capability of adapters.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore-adapter-attribute-guids
type AdapterAttribute struct {
	name string
	id   GUID
}

func (a AdapterAttribute) String() string { return a.name }

// D3D11Graphics is Direct3D 11 graphics.
func D3D11Graphics() AdapterAttribute {
	return AdapterAttribute{"Direct3D 11 graphics", GUID{0x8c47866b, 0x7583, 0x450d, [8]byte{0xf0, 0xf0, 0x6b, 0xad, 0xa8, 0x95, 0xaf, 0x4b}}}
}

// D3D12Graphics is Direct3D 12 graphics.
func D3D12Graphics() AdapterAttribute {
	return AdapterAttribute{"Direct3D 12 graphics", GUID{0x0c9ece4d, 0x2f6e, 0x4f01, [8]byte{0x8c, 0x96, 0xe8, 0x9e, 0x33, 0x1b, 0x47, 0xb1}}}
}

// D3D12CoreCompute is Direct3D 12 core compute, with or without graphics.
func D3D12CoreCompute() AdapterAttribute {
	return AdapterAttribute{"Direct3D 12 core compute", GUID{0x248e2800, 0xa793, 0x4724, [8]byte{0xab, 0xaa, 0x23, 0xa6, 0xde, 0x1b, 0xe0, 0x90}}}
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
