package win32

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// The declarations of cfgmgr32.h.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/ns-cfgmgr32-cm_notify_filter
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/ns-cfgmgr32-cm_notify_event_data
const (
	notifyDeviceInterface = 0 // CM_NOTIFY_FILTER_TYPE_DEVICEINTERFACE
	notifyDeviceInstance  = 2 // CM_NOTIFY_FILTER_TYPE_DEVICEINSTANCE

	notifyAllDeviceInstances = 2 // CM_NOTIFY_FILTER_FLAG_ALL_DEVICE_INSTANCES

	maxDeviceIDLen = 200 // MAX_DEVICE_ID_LEN

	notifyDataOffset = 8 // of the union in CM_NOTIFY_EVENT_DATA
)

// notifyFilter is CM_NOTIFY_FILTER. The members of its union include a handle, which
// determines its alignment, and an instance ID, which determines its size.
type notifyFilter struct {
	_          [0]uint64
	Size       uint32
	Flags      uint32
	FilterType uint32
	Reserved   uint32
	Interface  GUID
	_          [2*maxDeviceIDLen - 16]byte
}

// notifyFilters returns the filters for interface classes and all device instances.
func notifyFilters(interfaces []GUID) []notifyFilter {
	filters := []notifyFilter{{FilterType: notifyDeviceInstance, Flags: notifyAllDeviceInstances}}
	for _, class := range interfaces {
		filters = append(filters, notifyFilter{FilterType: notifyDeviceInterface, Interface: class})
	}
	for i := range filters {
		filters[i].Size = uint32(unsafe.Sizeof(filters[i]))
	}
	return filters
}

// NotifyEvent is an event of a device interface or a device instance.
type NotifyEvent struct {
	// Interface is the class of the device interface, zero for an instance.
	Interface GUID
	// Name is the interface's symbolic link or the device's instance ID.
	Name string
}

// parseNotifyEvent decodes CM_NOTIFY_EVENT_DATA.
func parseNotifyEvent(data []byte) (NotifyEvent, error) {
	if len(data) < notifyDataOffset {
		return NotifyEvent{}, fmt.Errorf("event of %d bytes", len(data))
	}
	union := data[notifyDataOffset:]
	switch kind := binary.LittleEndian.Uint32(data); kind {
	case notifyDeviceInterface:
		if len(union) < 16 {
			return NotifyEvent{}, fmt.Errorf("interface event of %d bytes", len(data))
		}
		return NotifyEvent{Interface: decodeGUID(binary.LittleEndian, union), Name: text(units(union[16:]))}, nil
	case notifyDeviceInstance:
		return NotifyEvent{Name: text(units(union))}, nil
	default:
		return NotifyEvent{}, fmt.Errorf("event of kind %d", kind)
	}
}

// dispatcher passes events to receivers by number. Windows passes the number, and not
// a pointer, to the callback, because an event can follow the end of its receiver.
type dispatcher struct {
	mu        sync.Mutex
	last      uintptr
	receivers map[uintptr]func(NotifyEvent)
}

// add returns the number of a new receiver, which must not block.
func (d *dispatcher) add(receiver func(NotifyEvent)) uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.receivers == nil {
		d.receivers = map[uintptr]func(NotifyEvent){}
	}
	d.last++
	d.receivers[d.last] = receiver
	return d.last
}

func (d *dispatcher) remove(number uintptr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.receivers, number)
}

// dispatch is the callback. An event that cannot be decoded is passed on empty.
func (d *dispatcher) dispatch(number uintptr, data []byte) {
	d.mu.Lock()
	receiver := d.receivers[number]
	d.mu.Unlock()
	if receiver == nil {
		return
	}
	event, _ := parseNotifyEvent(data)
	receiver(event)
}

// notifier calls a [dispatcher].
type notifier interface {
	// register makes the notifier call the dispatcher with number for each event that
	// matches filter.
	register(filter *notifyFilter, number uintptr) (handle uintptr, err error)
	// unregister waits for the current callbacks, so they must not call it.
	unregister(handle uintptr) error
}

// watch implements [WatchDevices]. Callbacks do not block, because unregistering waits
// for them.
func watch(ctx context.Context, d *dispatcher, n notifier, interfaces []GUID, filter func(NotifyEvent) bool, changed func()) (err error) {
	pending := make(chan struct{}, 1)
	number := d.add(func(e NotifyEvent) {
		if !filter(e) {
			return
		}
		select {
		case pending <- struct{}{}:
		default:
		}
	})
	defer d.remove(number)

	filters := notifyFilters(interfaces)
	for i := range filters {
		handle, e := n.register(&filters[i], number)
		if e != nil {
			return e
		}
		defer func() { err = errors.Join(err, n.unregister(handle)) }()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pending:
			changed()
		}
	}
}
