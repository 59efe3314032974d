//go:build linux

package dxg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watchEvents calls changed after a kernel event of the VMBus or of its virtual PCI devices.
func watchEvents(ctx context.Context, changed func()) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("open kernel events: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "uevents")
	defer func() { _ = socket.Close() }()
	const fromKernel = 1 // multicast group
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: fromKernel}); err != nil {
		return fmt.Errorf("subscribe to kernel events: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	buffer := make([]byte, 16<<10)
	for {
		n, err := socket.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // Events were lost.
		case err != nil:
			return fmt.Errorf("read kernel events: %w", err)
		case !isRelevant(buffer[:n]):
			continue
		}
		changed()
	}
}

// isRelevant reports whether a kernel event may concern a GPU. An event consists of NUL-terminated strings,
// of which the first is a header.
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-uevent
func isRelevant(event []byte) bool {
	for field := range bytes.SplitSeq(event, []byte{0}) {
		switch string(field) {
		case "SUBSYSTEM=vmbus", "SUBSYSTEM=pci", "DEVNAME=dxg":
			return true
		}
	}
	return false
}
