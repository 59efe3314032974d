//go:build linux

package dxg

import (
	"errors"
	"fmt"
	"os"
	"runtime"
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

// call runs a request, and pins argument and the data that it points to until the request returns.
func call[T any](d driver, request uintptr, argument *T, data unsafe.Pointer) error {
	var pin runtime.Pinner
	pin.Pin(argument)
	pin.Pin(data)
	defer pin.Unpin()
	return d.ioctl(request, unsafe.Pointer(argument))
}

// openAdapters opens all adapters, including compute-only ones. The driver closes them when the process closes its
// last /dev/dxg.
// https://github.com/microsoft/WSL2-Linux-Kernel/blob/linux-msft-wsl-6.6.y/drivers/hv/dxgkrnl/dxgprocess.c
func openAdapters(d driver) ([]adapterInfo, error) {
	buffer := make([]adapterInfo, maxAdapters)
	data := unsafe.Pointer(&buffer[0])
	args := &enumAdapters3{filter: includeComputeOnly, count: maxAdapters, adapters: data}
	if err := call(d, ioctlEnumAdapters3, args, data); err != nil {
		return nil, fmt.Errorf("enumerate adapters: %w", err)
	}
	if args.count > maxAdapters {
		return nil, fmt.Errorf("enumerate adapters: the driver reports %d, more than %d", args.count, maxAdapters)
	}
	return buffer[:args.count], nil
}
