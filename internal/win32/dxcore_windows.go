package win32

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"unsafe"
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

// call calls the function in slot with the object and args. What args point to stays
// alive and in place.
//
//go:uintptrescapes
func (o *comObject) call(slot int, args ...uintptr) uintptr {
	all := append([]uintptr{uintptr(unsafe.Pointer(o))}, args...)
	result, _, _ := syscall.SyscallN(o.table[slot], all...) //nolint:forbidigo // This is the Win32 layer.
	return result
}

func (o *comObject) release() { o.call(slotRelease) }

// cppBool converts a C++ bool, which is the low byte of the register.
func cppBool(result uintptr) bool { return byte(result) != 0 }

// DXCore lists the graphics adapters. It is safe for concurrent use.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore
type DXCore struct {
	factory *comObject
}

// OpenDXCore opens DXCore, which the caller closes. It is not available before Windows
// 10 version 2004 and Windows Server 2022.
func OpenDXCore() (*DXCore, error) {
	if err := available(procDXCoreCreateAdapterFactory); err != nil {
		return nil, err
	}
	id := iidDXCoreAdapterFactory()
	var factory *comObject
	if err := hresultError(dxcoreCreateAdapterFactory(&id, &factory)); err != nil {
		return nil, fmt.Errorf("DXCoreCreateAdapterFactory: %w", err)
	}
	return &DXCore{factory: factory}, nil
}

// Close releases DXCore.
func (d *DXCore) Close() { d.factory.release() }

// Adapters returns the present adapters with attribute. The caller closes each.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/nf-dxcore_interface-idxcoreadapterfactory-createadapterlist(uint32_t_constguid_refiid_void)
func (d *DXCore) Adapters(attribute AdapterAttribute) ([]*Adapter, error) {
	filter, listID, adapterID := attribute.id(), iidDXCoreAdapterList(), iidDXCoreAdapter()
	var list *comObject
	err := hresultError(int32(d.factory.call(slotFactoryCreateAdapterList, 1,
		uintptr(unsafe.Pointer(&filter)), uintptr(unsafe.Pointer(&listID)), uintptr(unsafe.Pointer(&list)))))
	if err != nil {
		return nil, fmt.Errorf("list DXCore's adapters with %s: %w", attribute, err)
	}
	defer list.release()
	count := uint32(list.call(slotListGetAdapterCount))
	adapters := make([]*Adapter, 0, count)
	for i := range count {
		var object *comObject
		result := list.call(slotListGetAdapter, uintptr(i), uintptr(unsafe.Pointer(&adapterID)), uintptr(unsafe.Pointer(&object)))
		if hresultError(int32(result)) != nil {
			continue // It has just been removed.
		}
		adapters = append(adapters, &Adapter{object: object})
	}
	return adapters, nil
}

// AdapterByLUID returns an adapter, which the caller closes.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/nf-dxcore_interface-idxcoreadapterfactory-getadapterbyluid(constluid_refiid_void)
func (d *DXCore) AdapterByLUID(luid uint64) (*Adapter, error) {
	id := iidDXCoreAdapter()
	var object *comObject
	err := hresultError(int32(d.factory.call(slotFactoryGetAdapterByLuid,
		uintptr(unsafe.Pointer(&luid)), uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(&object)))))
	if err != nil {
		return nil, fmt.Errorf("get DXCore's adapter with LUID 0x%X: %w", luid, err)
	}
	return &Adapter{object: object}, nil
}

// Adapter is a DXCore adapter.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/nn-dxcore_interface-idxcoreadapter
type Adapter struct {
	object *comObject
}

// Close releases the adapter.
func (a *Adapter) Close() { a.object.release() }

// Has reports whether the adapter has attribute.
func (a *Adapter) Has(attribute AdapterAttribute) bool {
	id := attribute.id()
	return cppBool(a.object.call(slotAdapterIsAttributeSupported, uintptr(unsafe.Pointer(&id))))
}

// Bool reads a bool property.
func (a *Adapter) Bool(p AdapterProperty) (bool, error) {
	data, err := a.property(p, 1)
	if err != nil {
		return false, err
	}
	return data[0] != 0, nil
}

// Uint64 reads a 64-bit property.
func (a *Adapter) Uint64(p AdapterProperty) (uint64, error) {
	data, err := a.property(p, 8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(data), nil
}

// Text reads a text property.
func (a *Adapter) Text(p AdapterProperty) (string, error) {
	data, err := a.property(p, 0)
	if err != nil {
		return "", err
	}
	s, _, _ := bytes.Cut(data, []byte{0})
	return string(bytes.ToValidUTF8(s, []byte("\uFFFD"))), nil
}

// property reads a property of size bytes, or of any size if size is 0.
func (a *Adapter) property(p AdapterProperty, size uintptr) ([]byte, error) {
	if !cppBool(a.object.call(slotAdapterIsPropertySupported, uintptr(p))) {
		return nil, fmt.Errorf("read adapter property %d: %w", p, errors.ErrUnsupported)
	}
	var has uintptr
	if err := hresultError(int32(a.object.call(slotAdapterGetPropertySize, uintptr(p), uintptr(unsafe.Pointer(&has))))); err != nil {
		return nil, fmt.Errorf("read the size of adapter property %d: %w", p, err)
	}
	if has == 0 || size > 0 && has != size {
		return nil, fmt.Errorf("read adapter property %d: %d bytes, want %d", p, has, size)
	}
	data := make([]byte, has)
	if err := hresultError(int32(a.object.call(slotAdapterGetProperty, uintptr(p), has, uintptr(unsafe.Pointer(&data[0]))))); err != nil {
		return nil, fmt.Errorf("read adapter property %d: %w", p, err)
	}
	return data, nil
}
