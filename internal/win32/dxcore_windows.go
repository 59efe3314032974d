package win32

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// The declarations of dxcore.h and dxcore_interface.h. A slot is an index in an interface's function
// table. The functions of IUnknown come first, then those of the interface in the order of the header.
// The Windows suite checks the slots with a DLL that is built from that header.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore-reference
// https://github.com/microsoft/DirectX-Headers (include/directx/dxcore_interface.h)
const (
	slotRelease                  = 2 // of IUnknown
	slotFactoryCreateAdapterList = 3
	slotFactoryGetAdapterByLUID  = 4
	slotListGetAdapter           = 3
	slotListGetAdapterCount      = 4
	slotAdapterGetProperty       = 6
	slotAdapterGetPropertySize   = 7
	usedSlots                    = 8 // each interface has more
)

// The adapters' properties: DXCoreAdapterProperty.
const (
	propertyLUID            = 0  // 8 bytes, HighPart in the upper half
	propertyDescription     = 2  // UTF-8 text with a terminator
	propertyDedicatedMemory = 7  // 8 bytes
	propertyHardware        = 11 // bool, one byte, as the next ones
	propertyIntegrated      = 12
	propertyDetachable      = 13
)

// The identifiers of dxcore_interface.h.
//
//nolint:gochecknoglobals // Constants.
var (
	iidDXCoreAdapterFactory = newGUID(0x78ee5945, 0xc36e, 0x4b13, 0xa6, 0x69, 0x00, 0x5d, 0xd1, 0x1c, 0x0f, 0x06)
	iidDXCoreAdapterList    = newGUID(0x526c7776, 0x40e9, 0x459b, 0xb7, 0x11, 0xf3, 0x2a, 0xd7, 0x6d, 0xfc, 0x28)
	iidDXCoreAdapter        = newGUID(0xf0db4c7f, 0xfe5a, 0x42a2, 0xbd, 0x62, 0xf2, 0xa6, 0xcf, 0x6f, 0xc8, 0x3e)
)

// comObject is a COM object, which starts with a pointer to its function table. It is
// not in Go's memory.
// https://learn.microsoft.com/windows/win32/com/the-component-object-model
type comObject struct {
	table *[usedSlots]uintptr
}

// call calls the function in slot with the object and args. The compiler keeps what args point to
// alive and in place.
//
//go:uintptrescapes
func (o *comObject) call(slot int, args ...uintptr) uintptr {
	all := append([]uintptr{uintptr(unsafe.Pointer(o))}, args...)
	result, _, _ := syscall.SyscallN(o.table[slot], all...) //nolint:forbidigo // This is the Win32 layer.
	return result
}

func (o *comObject) release() { o.call(slotRelease) }

// newAdapterFactory returns DXCore's factory. DXCore is not available before Windows 10 version 2004 and
// Windows Server 2022.
func newAdapterFactory() (factory *comObject, err error) {
	if err := available(procDXCoreCreateAdapterFactory); err != nil {
		return nil, err
	}
	if err := hresultError(dxcoreCreateAdapterFactory(&iidDXCoreAdapterFactory, &factory)); err != nil {
		return nil, fmt.Errorf("DXCoreCreateAdapterFactory: %w", err)
	}
	return factory, nil
}

// Adapters returns the present adapters of DXCore with graphics or compute.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore-adapter-attribute-guids
func Adapters() (all []Adapter, err error) {
	factory, err := newAdapterFactory()
	if err != nil {
		return nil, err
	}
	defer factory.release()
	for _, attribute := range []struct {
		id      windows.GUID
		support Adapter
	}{
		{newGUID(0x8c47866b, 0x7583, 0x450d, 0xf0, 0xf0, 0x6b, 0xad, 0xa8, 0x95, 0xaf, 0x4b), Adapter{Graphics: true}}, // Direct3D 11
		{newGUID(0x0c9ece4d, 0x2f6e, 0x4f01, 0x8c, 0x96, 0xe8, 0x9e, 0x33, 0x1b, 0x47, 0xb1), Adapter{Graphics: true}}, // Direct3D 12
		{newGUID(0x248e2800, 0xa793, 0x4724, 0xab, 0xaa, 0x23, 0xa6, 0xde, 0x1b, 0xe0, 0x90), Adapter{Compute: true}},
		// It is in the SDK since Windows build 26100.
		// https://github.com/microsoft/DirectX-Headers/releases/tag/v1.614.0
		{newGUID(0xb71b0d41, 0x1088, 0x422f, 0xa2, 0x7c, 0x02, 0x50, 0xb7, 0xd3, 0xa9, 0x88), Adapter{MachineLearning: true}},
	} {
		list, listErr := adaptersWith(factory, attribute.id)
		if listErr != nil && attribute.support.Graphics {
			return nil, listErr // A GPU would be compute-only.
		}
		for _, a := range list {
			i := slices.IndexFunc(all, func(known Adapter) bool { return known.LUID == a.LUID && a.LUID != 0 })
			if i < 0 {
				all, i = append(all, a), len(all)
			}
			all[i].Graphics = all[i].Graphics || attribute.support.Graphics
			all[i].Compute = all[i].Compute || attribute.support.Compute
			all[i].MachineLearning = all[i].MachineLearning || attribute.support.MachineLearning
		}
	}
	return all, nil
}

// adaptersWith returns the present adapters with an attribute.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/nf-dxcore_interface-idxcoreadapterfactory-createadapterlist(uint32_t_constguid_refiid_void)
func adaptersWith(factory *comObject, attribute windows.GUID) ([]Adapter, error) {
	var list *comObject
	err := hresultError(int32(factory.call(slotFactoryCreateAdapterList, 1,
		uintptr(unsafe.Pointer(&attribute)), uintptr(unsafe.Pointer(&iidDXCoreAdapterList)), uintptr(unsafe.Pointer(&list)))))
	if err != nil {
		return nil, fmt.Errorf("list DXCore's adapters: %w", err)
	}
	defer list.release()
	count := uint32(list.call(slotListGetAdapterCount))
	adapters := make([]Adapter, 0, count)
	for i := range count {
		var object *comObject
		result := list.call(slotListGetAdapter, uintptr(i), uintptr(unsafe.Pointer(&iidDXCoreAdapter)), uintptr(unsafe.Pointer(&object)))
		if hresultError(int32(result)) == nil { // Otherwise it has just been removed.
			adapters = append(adapters, readAdapter(object))
		}
	}
	return adapters, nil
}

// readAdapter reads the adapter's properties and releases it.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/nn-dxcore_interface-idxcoreadapter
func readAdapter(o *comObject) (a Adapter) {
	defer o.release()
	read := func(property, size uintptr) []byte {
		data, err := o.property(property, size)
		if err != nil {
			a.ReadErrors = append(a.ReadErrors, err)
			return make([]byte, size)
		}
		return data
	}
	a.LUID = binary.LittleEndian.Uint64(read(propertyLUID, 8))
	description, _, _ := bytes.Cut(read(propertyDescription, 0), []byte{0})
	a.Description = string(bytes.ToValidUTF8(description, []byte("\uFFFD")))
	a.Hardware = read(propertyHardware, 1)[0] != 0
	a.Integrated = read(propertyIntegrated, 1)[0] != 0
	a.Detachable = read(propertyDetachable, 1)[0] != 0
	a.DedicatedMemory = binary.LittleEndian.Uint64(read(propertyDedicatedMemory, 8))
	return a
}

// property reads a property of an adapter. Its size must be the given number of bytes, unless that is 0.
func (o *comObject) property(p, size uintptr) ([]byte, error) {
	var actual uintptr
	if err := hresultError(int32(o.call(slotAdapterGetPropertySize, p, uintptr(unsafe.Pointer(&actual))))); err != nil {
		return nil, fmt.Errorf("read the size of adapter property %d: %w", p, err)
	}
	if actual == 0 || size > 0 && actual != size {
		return nil, fmt.Errorf("read adapter property %d: %d bytes, want %d", p, actual, size)
	}
	data := make([]byte, actual)
	if err := hresultError(int32(o.call(slotAdapterGetProperty, p, actual, uintptr(unsafe.Pointer(&data[0]))))); err != nil {
		return nil, fmt.Errorf("read adapter property %d: %w", p, err)
	}
	return data, nil
}

// CheckDirect3D12 returns nil if Direct3D 12 creates a device on the DXCore adapter with this LUID. For that, it
// loads the driver's files: a container can have the adapter without them.
func CheckDirect3D12(luid uint64) error {
	if err := available(procD3D12CreateDevice); err != nil {
		return err
	}
	factory, err := newAdapterFactory()
	if err != nil {
		return err
	}
	defer factory.release()
	var adapter *comObject
	err = hresultError(int32(factory.call(slotFactoryGetAdapterByLUID,
		uintptr(unsafe.Pointer(&luid)), uintptr(unsafe.Pointer(&iidDXCoreAdapter)), uintptr(unsafe.Pointer(&adapter)))))
	if err != nil {
		return fmt.Errorf("open DXCore's adapter: %w", err)
	}
	defer adapter.release()
	id := newGUID(0x189819f1, 0x1db6, 0x4b57, 0xbe, 0x54, 0x18, 0x21, 0x33, 0x9b, 0x85, 0xf7) // ID3D12Device
	// The minimum levels of neural processors (1_0_GENERIC), compute-only devices (1_0_CORE) and GPUs (11_0). The
	// error of the last is reported: an older Windows refuses the first as unknown.
	// https://learn.microsoft.com/windows/win32/api/d3dcommon/ne-d3dcommon-d3d_feature_level
	for _, level := range []uint32{0x100, 0x1000, 0xb000} {
		if err = hresultError(d3d12CreateDevice(adapter, level, &id, nil)); err == nil { // nil: S_FALSE is success.
			return nil
		}
	}
	return fmt.Errorf("D3D12CreateDevice: %w", err)
}
