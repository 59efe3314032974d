//go:build linux

package dxg

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/discovery/hostfiles"
)

// driver is an open /dev/dxg.
type driver interface {
	// ioctl runs a request. argument is pinned, and so is what it points to.
	ioctl(request uintptr, argument unsafe.Pointer) error
	Close() error
}

// device is /dev/dxg.
type device struct{ *os.File }

func openDevice(root hostfiles.Root) (driver, error) {
	path, _, err := root.Lookup(DefaultDevice)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	return device{file}, err
}

func (d device) ioctl(request uintptr, argument unsafe.Pointer) error {
	for {
		// A positive result is an NTSTATUS of success.
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), request, uintptr(argument))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// isDeviceLost reports whether err means that the adapter or its host is gone: the driver has stopped
// the adapter, the host has removed its channel, or the host has answered STATUS_DEVICE_REMOVED. An
// adapter that works can answer single queries with any other error: ntstatus2int returns ENOENT for a
// name that the host does not have, EPERM for a query that the host does not support, and EINVAL for
// a status that the driver does not know.
// https://github.com/microsoft/WSL2-Linux-Kernel/blob/linux-msft-wsl-6.6.y/drivers/hv/dxgkrnl/dxgvmbus.c
// https://github.com/microsoft/WSL2-Linux-Kernel/blob/linux-msft-wsl-6.6.y/drivers/hv/dxgkrnl/dxgadapter.c
func isDeviceLost(err error) bool { return errors.Is(err, unix.ENODEV) }

// errnoText returns an error's text with the name of its errno.
func errnoText(err error) string {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return fmt.Sprintf("%v (%s)", err, unix.ErrnoName(errno))
	}
	return err.Error()
}

// call runs a request, and pins argument until it returns.
func call[T any](d driver, request uintptr, argument *T) error {
	var pin runtime.Pinner
	pin.Pin(argument)
	defer pin.Unpin()
	return d.ioctl(request, unsafe.Pointer(argument))
}

// query reads size bytes of an adapter's properties into data, which may contain the input of
// the query.
func query(d driver, handle, kind uint32, data unsafe.Pointer, size int) error {
	var pin runtime.Pinner
	pin.Pin(data)
	defer pin.Unpin()
	return call(d, ioctlQueryAdapterInfo, &queryAdapterInfo{handle: handle, kind: kind, data: data, size: uint32(size)})
}

// openAdapters opens all adapters, including compute-only ones. The caller closes their handles. The
// driver does not check the size of the buffer, so the first request gets the number of adapters.
func openAdapters(d driver) ([]adapterInfo, error) {
	request := func(count int, buffer unsafe.Pointer) (uint32, error) {
		args := &enumAdapters3{filter: includeComputeOnly, count: uint32(count), adapters: buffer}
		err := call(d, ioctlEnumAdapters3, args)
		return args.count, err
	}
	count, err := request(0, nil)
	if err != nil {
		return nil, fmt.Errorf("count adapters: %w", err)
	}
	if count > maxEnumerated {
		return nil, fmt.Errorf("count adapters: the driver reports %d, more than %d", count, maxEnumerated)
	}
	buffer := make([]adapterInfo, max(int(count), maxAdapters))
	var pin runtime.Pinner
	pin.Pin(&buffer[0])
	defer pin.Unpin()
	found, err := request(len(buffer), unsafe.Pointer(&buffer[0]))
	switch {
	case err != nil:
		return nil, fmt.Errorf("enumerate adapters: %w", err)
	case int64(found) > int64(len(buffer)):
		closeAdapters(d, buffer)
		return nil, fmt.Errorf("enumerate adapters: the driver reports %d adapters for a list of %d", found, len(buffer))
	}
	closeAdapters(d, buffer[found:])
	return slices.DeleteFunc(buffer[:found], func(a adapterInfo) bool { return a.handle == 0 }), nil
}

// closeAdapters closes the adapters' handles, if they have one.
func closeAdapters(d driver, adapters []adapterInfo) {
	for _, a := range adapters {
		if a.handle != 0 {
			_ = call(d, ioctlCloseAdapter, &closeAdapter{a.handle}) // closing d closes it, too
		}
	}
}
