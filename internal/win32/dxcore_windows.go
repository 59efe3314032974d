package win32

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"syscall"
	"unsafe"
)

// The declarations of dxcore.h and dxcore_interface.h. A slot is an index in an interface's function
// table. The functions of IUnknown come first, then those of the interface in the order of the header.
// The Windows suite checks the slots with a DLL that is built from that header.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore-reference
// https://github.com/microsoft/DirectX-Headers (include/directx/dxcore_interface.h)
const (
	slotRelease                  = 2 // of IUnknown
	slotFactoryCreateAdapterList = 3
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
func iidDXCoreAdapterFactory() GUID { return parseGUID("78ee5945-c36e-4b13-a669-005dd11c0f06") }
func iidDXCoreAdapterList() GUID    { return parseGUID("526c7776-40e9-459b-b711-f32ad76dfc28") }
func iidDXCoreAdapter() GUID        { return parseGUID("f0db4c7f-fe5a-42a2-bd62-f2a6cf6fc83e") }

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

// Adapters returns the present adapters of DXCore with graphics or compute. DXCore is not available before
// Windows 10 version 2004 and Windows Server 2022.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore-adapter-attribute-guids
func Adapters() (all []Adapter, err error) {
	if err := available(procDXCoreCreateAdapterFactory); err != nil {
		return nil, err
	}
	id := iidDXCoreAdapterFactory()
	var factory *comObject
	if err := hresultError(dxcoreCreateAdapterFactory(&id, &factory)); err != nil {
		return nil, fmt.Errorf("DXCoreCreateAdapterFactory: %w", err)
	}
	defer factory.release()
	lists := 0
	for _, attribute := range []struct {
		id       string
		graphics bool
	}{
		{"8c47866b-7583-450d-f0f0-6bada895af4b", true},  // Direct3D 11 graphics
		{"0c9ece4d-2f6e-4f01-8c96-e89e331b47b1", true},  // Direct3D 12 graphics
		{"248e2800-a793-4724-abaa-23a6de1be090", false}, // Direct3D 12 core compute, with or without graphics
		// Direct3D 12 machine learning, which neural processors can have without core compute. It is in the
		// SDK since Windows build 26100.
		// https://github.com/microsoft/DirectX-Headers/releases/tag/v1.614.0
		{"b71b0d41-1088-422f-a27c-0250b7d3a988", false},
	} {
		list, listErr := adaptersWith(factory, parseGUID(attribute.id))
		if listErr != nil {
			err = listErr
			continue
		}
		lists++
		for _, a := range list {
			i := slices.IndexFunc(all, func(known Adapter) bool { return known.LUID == a.LUID && a.LUID != 0 })
			if i < 0 {
				all, i = append(all, a), len(all)
			}
			all[i].Graphics = all[i].Graphics || attribute.graphics
			all[i].Compute = all[i].Compute || !attribute.graphics
		}
	}
	if lists == 0 {
		return nil, err
	}
	return all, nil
}

// adaptersWith returns the present adapters with an attribute.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/nf-dxcore_interface-idxcoreadapterfactory-createadapterlist(uint32_t_constguid_refiid_void)
func adaptersWith(factory *comObject, attribute GUID) ([]Adapter, error) {
	listID, adapterID := iidDXCoreAdapterList(), iidDXCoreAdapter()
	var list *comObject
	err := hresultError(int32(factory.call(slotFactoryCreateAdapterList, 1,
		uintptr(unsafe.Pointer(&attribute)), uintptr(unsafe.Pointer(&listID)), uintptr(unsafe.Pointer(&list)))))
	if err != nil {
		return nil, fmt.Errorf("list DXCore's adapters: %w", err)
	}
	defer list.release()
	count := uint32(list.call(slotListGetAdapterCount))
	adapters := make([]Adapter, 0, count)
	for i := range count {
		var object *comObject
		result := list.call(slotListGetAdapter, uintptr(i), uintptr(unsafe.Pointer(&adapterID)), uintptr(unsafe.Pointer(&object)))
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
