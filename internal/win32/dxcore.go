package win32

// Adapter is a DXCore adapter.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/ne-dxcore_interface-dxcoreadapterproperty
type Adapter struct {
	// LUID has HighPart in the upper half.
	LUID        uint64
	Description string
	// Hardware is false for software renderers.
	Hardware, Integrated, Detachable bool
	// Graphics is Direct3D 11 or 12 graphics, Compute is core compute, and MachineLearning is generic machine
	// learning, which neural processors can have without core compute.
	Graphics, Compute, MachineLearning bool
	// DedicatedMemory is in bytes.
	DedicatedMemory uint64
	// ReadErrors are the errors of properties that could not be read.
	ReadErrors []error
}
