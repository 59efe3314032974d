package win32

// The declarations of dxcore.h and dxcore_interface.h. A slot is an index of an
// interface's function table: IUnknown's functions come first, then those of the
// header in its order.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore-reference
// https://github.com/microsoft/DirectX-Headers (include/directx/dxcore_interface.h)
const (
	_           = iota // QueryInterface
	_                  // AddRef
	slotRelease        // the last one of IUnknown
	firstSlot          // of an interface's own functions
)

const (
	slotFactoryCreateAdapterList = firstSlot + iota
	slotFactoryGetAdapterByLuid
)

const (
	slotListGetAdapter = firstSlot + iota
	slotListGetAdapterCount
)

const (
	_ = firstSlot + iota // IsValid
	slotAdapterIsAttributeSupported
	slotAdapterIsPropertySupported
	slotAdapterGetProperty
	slotAdapterGetPropertySize
	usedSlots // in any interface; each has more
)

// AdapterAttribute is a capability of adapters.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore-adapter-attribute-guids
type AdapterAttribute int

// The attributes.
const (
	D3D11Graphics AdapterAttribute = iota
	D3D12Graphics
	// D3D12CoreCompute is with or without graphics.
	D3D12CoreCompute
	// D3D12GenericML is machine learning, which neural processors can have without core
	// compute. It is in the SDK since Windows build 26100.
	// https://github.com/microsoft/DirectX-Headers/releases/tag/v1.614.0
	D3D12GenericML
)

func (a AdapterAttribute) String() string {
	return [...]string{"Direct3D 11 graphics", "Direct3D 12 graphics", "Direct3D 12 core compute", "Direct3D 12 machine learning"}[a]
}

func (a AdapterAttribute) id() GUID {
	return parseGUID([...]string{
		"8c47866b-7583-450d-f0f0-6bada895af4b", "0c9ece4d-2f6e-4f01-8c96-e89e331b47b1",
		"248e2800-a793-4724-abaa-23a6de1be090", "b71b0d41-1088-422f-a27c-0250b7d3a988",
	}[a])
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
