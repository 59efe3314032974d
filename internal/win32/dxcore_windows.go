package win32

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"unsafe"
)

// comObject is a COM object: its first word points to its table of functions. It
// lies in memory that is not Go's.
// https://learn.microsoft.com/windows/win32/com/the-component-object-model
type comObject struct {
	table *[adapterSlots]uintptr // None of ours is longer.
}

// call calls the function in slot with the object and args, which are kept alive
// and in place meanwhile.
//
//go:uintptrescapes
func (o *comObject) call(slot int, args ...uintptr) uintptr {
	all := append([]uintptr{uintptr(unsafe.Pointer(o))}, args...)
	result, _, _ := syscall.SyscallN(o.table[slot], all...) //nolint:forbidigo // This is the Win32 layer.
	return result
}

func (o *comObject) release() { o.call(slotRelease) }

// truth reads a C++ bool: the rest of the register means nothing.
func truth(result uintptr) bool { return byte(result) != 0 }

// DXCore lists the graphics adapters. Its methods may be called by several
// goroutines at once, as DXCore's may.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore
type DXCore struct {
	factory *comObject
}

// OpenDXCore returns DXCore. Before Windows 10 version 2004 and Windows Server 2022
// there is none, and the error matches [errors.ErrUnsupported]. The caller closes
// it.
func OpenDXCore() (*DXCore, error) {
	if err := available(procDXCoreCreateAdapterFactory); err != nil {
		return nil, err
	}
	id := iidDXCoreAdapterFactory()
	var factory *comObject
	if err := failed(dxcoreCreateAdapterFactory(&id, &factory)); err != nil {
		return nil, fmt.Errorf("open DXCore by DXCoreCreateAdapterFactory: %w", err)
	}
	return &DXCore{factory: factory}, nil
}

// Close lets go of DXCore.
func (d *DXCore) Close() { d.factory.release() }

// Adapters returns those that have attribute now. One that is going meanwhile is
// left out. The caller closes each.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/nf-dxcore_interface-idxcoreadapterfactory-createadapterlist(uint32_t_constguid_refiid_void)
func (d *DXCore) Adapters(attribute AdapterAttribute) ([]*Adapter, error) {
	filter, listID, adapterID := attribute.GUID(), iidDXCoreAdapterList(), iidDXCoreAdapter()
	var list *comObject
	err := failed(int32(d.factory.call(slotFactoryCreateAdapterList, 1,
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
		if failed(int32(result)) != nil {
			continue
		}
		adapters = append(adapters, &Adapter{object: object})
	}
	return adapters, nil
}

// AdapterByLUID returns one adapter, whatever its attributes. The caller closes it.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/nf-dxcore_interface-idxcoreadapterfactory-getadapterbyluid(constluid_refiid_void)
func (d *DXCore) AdapterByLUID(luid LUID) (*Adapter, error) {
	id := iidDXCoreAdapter()
	var object *comObject
	err := failed(int32(d.factory.call(slotFactoryGetAdapterByLuid,
		uintptr(unsafe.Pointer(&luid)), uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(&object)))))
	if err != nil {
		return nil, fmt.Errorf("ask DXCore for the adapter with LUID 0x%X: %w", luid.Uint64(), err)
	}
	return &Adapter{object: object}, nil
}

// Adapter is one of DXCore's adapters.
// https://learn.microsoft.com/windows/win32/api/dxcore_interface/nn-dxcore_interface-idxcoreadapter
type Adapter struct {
	object *comObject
}

// Close lets go of the adapter.
func (a *Adapter) Close() { a.object.release() }

// Has tells whether the adapter has attribute.
func (a *Adapter) Has(attribute AdapterAttribute) bool {
	id := attribute.GUID()
	return truth(a.object.call(slotAdapterIsAttributeSupported, uintptr(unsafe.Pointer(&id))))
}

// LUID reads the adapter's LUID.
func (a *Adapter) LUID() (LUID, error) {
	data, err := a.property(InstanceLUID, 8)
	if err != nil {
		return LUID{}, err
	}
	return LUIDFrom(binary.LittleEndian.Uint64(data)), nil
}

// Bool reads a property that is true or false.
func (a *Adapter) Bool(p AdapterProperty) (bool, error) {
	data, err := a.property(p, 1)
	if err != nil {
		return false, err
	}
	return data[0] != 0, nil
}

// Uint64 reads a property that is a number of 64 bits.
func (a *Adapter) Uint64(p AdapterProperty) (uint64, error) {
	data, err := a.property(p, 8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(data), nil
}

// Text reads a property that is a text.
func (a *Adapter) Text(p AdapterProperty) (string, error) {
	data, err := a.property(p, 0)
	if err != nil {
		return "", err
	}
	s, _, _ := bytes.Cut(data, []byte{0})
	return string(bytes.ToValidUTF8(s, []byte("\uFFFD"))), nil
}

// property reads a property of size bytes, or of any size when size is 0.
func (a *Adapter) property(p AdapterProperty, size uintptr) ([]byte, error) {
	if !truth(a.object.call(slotAdapterIsPropertySupported, uintptr(p))) {
		return nil, fmt.Errorf("read DXCore's %s of the adapter: %w", p, errors.ErrUnsupported)
	}
	var has uintptr
	if err := failed(int32(a.object.call(slotAdapterGetPropertySize, uintptr(p), uintptr(unsafe.Pointer(&has))))); err != nil {
		return nil, fmt.Errorf("read the size of DXCore's %s of the adapter: %w", p, err)
	}
	if has == 0 || size > 0 && has != size {
		return nil, fmt.Errorf("read DXCore's %s of the adapter: it has %d bytes, not %d", p, has, size)
	}
	data := make([]byte, has)
	if err := failed(int32(a.object.call(slotAdapterGetProperty, uintptr(p), has, uintptr(unsafe.Pointer(&data[0]))))); err != nil {
		return nil, fmt.Errorf("read DXCore's %s of the adapter: %w", p, err)
	}
	return data, nil
}
