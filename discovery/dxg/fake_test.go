//go:build linux

package dxg

import (
	"encoding/binary"
	"path/filepath"
	"testing"
	"unicode/utf16"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// fakeAdapter answers queries with bytes; a missing one is refused as the driver refuses it.
type fakeAdapter struct {
	luid    uint32
	answers map[uint32][]byte
	// failure is the answer to every query.
	failure error
	// zeros makes all unknown answers zero, as with an old host.
	zeros bool
}

// fakeDriver is a driver whose adapters are in memory.
type fakeDriver struct {
	adapters []fakeAdapter
	// openErr fails an open.
	openErr error
	// count is added to the reported number of adapters.
	count int
	// handles maps open handles to adapters.
	handles       map[uint32]fakeAdapter
	next          uint32
	open, queries int
}

func (f *fakeDriver) Open(hostfiles.Root) (driver, error) {
	if f.openErr != nil {
		return nil, f.openErr
	}
	f.open++
	return f, nil
}

func (f *fakeDriver) Close() error {
	f.open--
	clear(f.handles)
	return nil
}

func (f *fakeDriver) ioctl(request uintptr, argument unsafe.Pointer) error {
	switch request {
	case ioctlEnumAdapters3:
		args := (*enumAdapters3)(argument)
		if args.filter != includeComputeOnly {
			return unix.ENOTTY
		}
		return f.enumerate(&args.count, args.adapters)
	case ioctlQueryAdapterInfo:
		args := (*queryAdapterInfo)(argument)
		f.queries++
		adapter, open := f.handles[args.handle]
		answer, known := adapter.answers[args.kind]
		switch data := unsafe.Slice((*byte)(args.data), args.size); {
		case adapter.failure != nil:
			return adapter.failure
		case adapter.zeros && !known:
			clear(data)
		case !open || !known:
			return unix.EINVAL
		case args.kind == queryRegistry:
			answerRegistry(data, answer)
		default:
			copy(data, answer)
		}
		return nil
	}
	return unix.ENOTTY
}

func (f *fakeDriver) enumerate(count *uint32, buffer unsafe.Pointer) error {
	size := int(*count)
	*count = uint32(len(f.adapters) + f.count)
	for i, info := range unsafe.Slice((*adapterInfo)(buffer), size)[:len(f.adapters)] {
		f.next += 0x40
		if f.handles == nil {
			f.handles = map[uint32]fakeAdapter{}
		}
		f.handles[f.next] = f.adapters[i]
		info.handle, info.luid = f.next, winLUID{low: f.adapters[i].luid}
		unsafe.Slice((*adapterInfo)(buffer), size)[i] = info
	}
	return nil
}

// answerRegistry answers as the host does: the whole output must fit.
func answerRegistry(data, path []byte) {
	status, size := uint32(registrySuccess), uint32(len(path))
	switch {
	case binary.LittleEndian.Uint32(data) != registryDriverStorePath:
		status, size = 2, 0
	case 552+len(path) > len(data): // sizeof(D3DDDI_QUERYREGISTRY_INFO)
		status = 1 // D3DDDI_QUERYREGISTRY_STATUS_BUFFER_OVERFLOW
	default:
		copy(data[544:], path)
	}
	binary.LittleEndian.PutUint32(data[536:], size)
	binary.LittleEndian.PutUint32(data[540:], status)
}

func utf16le(text string) []byte {
	var b []byte
	for _, unit := range utf16.Encode([]rune(text + "\x00")) {
		b = binary.LittleEndian.AppendUint16(b, unit)
	}
	return b
}

func le(values ...uint32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// gpu returns an adapter that answers everything but its address.
func gpu(luid, vendor, device, bits uint32, name, driverPackage string) fakeAdapter {
	registry := make([]byte, 2080)
	copy(registry, utf16le(name))
	return fakeAdapter{luid: luid, answers: map[uint32][]byte{
		queryType:            le(bits),
		queryDeviceIDs:       le(0, vendor, device, 0x1043, 0x16F1, 0xA1, 0),
		queryRegistryInfo:    registry,
		querySegmentSize:     binary.LittleEndian.AppendUint64(nil, 8<<30),
		queryUserModeVersion: binary.LittleEndian.AppendUint64(nil, 32<<48|15<<16|6094),
		queryRegistry:        utf16le(`\SystemRoot\System32\DriverStore\FileRepository\` + driverPackage),
	}}
}

func nvidia() fakeAdapter {
	return gpu(0xC2F5, 0x10DE, 0x2684, typeRender, "NVIDIA GeForce RTX 4090", "nv_dispi.inf_amd64_1f2e")
}

func intel() fakeAdapter {
	return gpu(0xB100, 0x8086, 0x46A6, typeRender|typeHybridIntegrated, "Intel(R) Iris(R) Xe Graphics", "iigd_dch.inf_amd64_0a1b")
}

// without returns a without the answer to a query.
func (a fakeAdapter) without(kinds ...uint32) fakeAdapter {
	for _, kind := range kinds {
		delete(a.answers, kind)
	}
	return a
}

// with returns a with another answer to a query.
func (a fakeAdapter) with(kind uint32, answer []byte) fakeAdapter {
	a.answers[kind] = answer
	return a
}

// newSource returns a source of f in a VM with the files of both drivers.
func newSource(t testing.TB, f *fakeDriver) (*Source, string) {
	root := t.TempDir()
	for _, file := range []string{
		"lib/libdxcore.so", "lib/libd3d12.so", "lib/libcuda.so.1", "lib/nvidia-smi",
		"drivers/nv_dispi.inf_amd64_1f2e/libnvwgf2umx.so", "drivers/iigd_dch.inf_amd64_0a1b/B1/libigd.so.12", "drivers/npu.inf_amd64_1/npu.so.dll",
	} {
		testutil.WriteFile(t, filepath.Join(root, wslDir, file), "", 0o644)
	}
	s := Open(hostfiles.Root(root))
	s.open = f.Open
	t.Cleanup(func() {
		if f.open != 0 {
			t.Errorf("%d files are open", f.open)
		}
	})
	return s, root
}
