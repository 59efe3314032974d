//go:build linux

package dxg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// timing is the intervals of [Source.Watch].
type timing struct {
	debounce time.Duration // from the first event to the read
	settle   time.Duration // from that read to another: the host may lag behind
	poll     time.Duration // between reads otherwise
}

// Watch implements [discovery.Source]. It reads the GPUs after a kernel event of the VMBus
// or of its virtual PCI devices, and twice a minute besides.
//
// It calls changed at once if the list differs from the one that [Source.Devices]
// returned last.
func (s *Source) Watch(ctx context.Context, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	events, wait, err := subscribe(ctx)
	defer wait()
	defer cancel()
	if err != nil && s.options.Log != nil {
		s.options.Log.WithError(err).Warn("Kernel events are not available; the GPUs are polled twice a minute")
	}
	return s.watch(ctx, events, changed)
}

// watch is [Source.Watch] with a channel of events.
func (s *Source) watch(ctx context.Context, events <-chan struct{}, changed func()) error {
	s.mu.Lock()
	seen := s.state.generation
	s.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	pending, settling := false, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events:
			if !pending {
				pending = true
				timer.Reset(s.timing.debounce)
			}
			continue
		case <-timer.C:
		}
		st, err := s.read(ctx)
		if err != nil { // ctx has ended.
			return nil //nolint:nilerr // as the interface has it
		}
		if st.generation != seen {
			seen = st.generation
			changed()
		}
		settling, pending = pending, false
		if settling {
			timer.Reset(s.timing.settle)
		} else {
			timer.Reset(s.timing.poll)
		}
	}
}

// subscribe returns a channel with an element after each relevant kernel event until
// ctx ends. A nil channel has none. After that, wait waits for what reads the events.
func subscribe(ctx context.Context) (_ <-chan struct{}, wait func(), _ error) {
	nothing := func() {}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, nothing, fmt.Errorf("open kernel events: %w", err)
	}
	const fromKernel = 1 // multicast group
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: fromKernel}); err != nil {
		_ = unix.Close(fd)
		return nil, nothing, fmt.Errorf("subscribe to kernel events: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "uevents")
	events := make(chan struct{}, 1)
	context.AfterFunc(ctx, func() { _ = socket.Close() })
	var reader sync.WaitGroup
	reader.Go(func() {
		buffer := make([]byte, 16<<10)
		for {
			n, err := socket.Read(buffer)
			switch {
			case ctx.Err() != nil:
				return
			case err == nil && !relevant(buffer[:n]):
				continue
			case err != nil && !isOverrun(err):
				return // the poll remains
			}
			select {
			case events <- struct{}{}:
			default:
			}
		}
	})
	return events, reader.Wait, nil
}

// isOverrun reports whether err means that events were lost.
func isOverrun(err error) bool { return errors.Is(err, unix.ENOBUFS) }

// relevant reports whether a kernel event may be about a GPU: strings that end with
// NUL, of which the first is a heading.
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-uevent
func relevant(event []byte) bool {
	for field := range bytes.SplitSeq(event, []byte{0}) {
		switch string(field) {
		case "SUBSYSTEM=vmbus", "SUBSYSTEM=pci", "DEVNAME=dxg":
			return true
		}
	}
	return false
}
