package win32

// What dxcore.h and dxcore_interface.h declare. The slots are places in an
// interface's table of functions: those of IUnknown first, then in the header's
// order.
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

// AdapterAttribute is something that an adapter can do.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore-adapter-attribute-guids
type AdapterAttribute int

// The attributes that are asked for.
const (
	D3D11Graphics AdapterAttribute = iota
	D3D12Graphics
	// D3D12CoreCompute is what compute needs; an adapter with graphics need not
	// have it.
	D3D12CoreCompute
)

// AdapterAttributes returns all of them.
func AdapterAttributes() []AdapterAttribute {
	return []AdapterAttribute{D3D11Graphics, D3D12Graphics, D3D12CoreCompute}
}

// GUID returns what DXCore knows a by.
func (a AdapterAttribute) GUID() GUID {
	switch a {
	case D3D11Graphics:
		return GUID{0x8c47866b, 0x7583, 0x450d, [8]byte{0xf0, 0xf0, 0x6b, 0xad, 0xa8, 0x95, 0xaf, 0x4b}}
	case D3D12Graphics:
		return GUID{0x0c9ece4d, 0x2f6e, 0x4f01, [8]byte{0x8c, 0x96, 0xe8, 0x9e, 0x33, 0x1b, 0x47, 0xb1}}
	case D3D12CoreCompute:
		return GUID{0x248e2800, 0xa793, 0x4724, [8]byte{0xab, 0xaa, 0x23, 0xa6, 0xde, 0x1b, 0xe0, 0x90}}
	}
	return GUID{}
}

func (a AdapterAttribute) String() string {
	switch a {
	case D3D11Graphics:
		return "Direct3D 11 graphics"
	case D3D12Graphics:
		return "Direct3D 12 graphics"
	case D3D12CoreCompute:
		return "Direct3D 12 core compute"
	}
	return a.GUID().String()
}

// AdapterProperty is a DXCoreAdapterProperty.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/ne-dxcore_interface-dxcoreadapterproperty
type AdapterProperty uint32

// The properties that are asked for.
const (
	InstanceLUID           AdapterProperty = 0  // LUID
	DriverDescription      AdapterProperty = 2  // UTF-8 text with a terminator
	DedicatedAdapterMemory AdapterProperty = 7  // uint64, bytes
	IsHardware             AdapterProperty = 11 // bool, one byte
	IsIntegrated           AdapterProperty = 12 // bool, one byte
	IsDetachable           AdapterProperty = 13 // bool, one byte
)

func (p AdapterProperty) String() string {
	switch p {
	case InstanceLUID:
		return "InstanceLuid"
	case DriverDescription:
		return "DriverDescription"
	case DedicatedAdapterMemory:
		return "DedicatedAdapterMemory"
	case IsHardware:
		return "IsHardware"
	case IsIntegrated:
		return "IsIntegrated"
	case IsDetachable:
		return "IsDetachable"
	}
	return "another property"
}
