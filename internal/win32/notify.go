package win32

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// What cfgmgr32.h declares of notifications.
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/ns-cfgmgr32-cm_notify_filter
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/ns-cfgmgr32-cm_notify_event_data
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/ne-cfgmgr32-cm_notify_action
const (
	notifyDeviceInterface = 0 // CM_NOTIFY_FILTER_TYPE_DEVICEINTERFACE
	notifyDeviceInstance  = 2 // CM_NOTIFY_FILTER_TYPE_DEVICEINSTANCE

	notifyAllDeviceInstances = 2 // CM_NOTIFY_FILTER_FLAG_ALL_DEVICE_INSTANCES

	maxDeviceIDLen = 200 // MAX_DEVICE_ID_LEN

	// notifyDataOffset is where CM_NOTIFY_EVENT_DATA's union begins.
	notifyDataOffset = 8
)

// notifyFilter is CM_NOTIFY_FILTER. Its union has a handle, which aligns it, and an
// instance ID, which gives it its size.
type notifyFilter struct {
	_          [0]uint64
	Size       uint32
	Flags      uint32
	FilterType uint32
	Reserved   uint32
	Interface  GUID
	_          [2*maxDeviceIDLen - 16]byte
}

// notifyFilters returns the filters for the events of interface classes and of all
// device instances.
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

// NotifyAction is a CM_NOTIFY_ACTION: what has happened.
type NotifyAction uint32

// The actions that are told of device interfaces and device instances.
const (
	InterfaceArrival   NotifyAction = 0
	InterfaceRemoval   NotifyAction = 1
	InstanceEnumerated NotifyAction = 7
	InstanceStarted    NotifyAction = 8
	InstanceRemoved    NotifyAction = 9
)

// NotifyEvent is something that has happened to a device.
type NotifyEvent struct {
	Action NotifyAction
	// Interface is the class of the device interface; all zero for an instance.
	Interface GUID
	// Name is the interface's symbolic link, or the device's instance ID.
	Name string
}

// parseNotifyEvent reads the CM_NOTIFY_EVENT_DATA that came with action.
func parseNotifyEvent(action NotifyAction, data []byte) (NotifyEvent, error) {
	e := NotifyEvent{Action: action}
	if len(data) < notifyDataOffset {
		return e, fmt.Errorf("an event of %d bytes", len(data))
	}
	union := data[notifyDataOffset:]
	switch kind := binary.LittleEndian.Uint32(data); kind {
	case notifyDeviceInterface:
		if len(union) < 16 {
			return e, fmt.Errorf("an interface event of %d bytes", len(data))
		}
		e.Interface, e.Name = guid(union), text(units(union[16:]))
	case notifyDeviceInstance:
		e.Name = text(units(union))
	default:
		return e, fmt.Errorf("an event of kind %d", kind)
	}
	return e, nil
}

// dispatcher gives each event to the one who registered for it. Windows hands back
// a number with each event, and not a pointer: it may come after its owner has
// gone, and then nobody gets it.
type dispatcher struct {
	mu    sync.Mutex
	last  uintptr
	takes map[uintptr]func(NotifyEvent)
}

// add returns the number by which take, which must not block, gets events.
func (d *dispatcher) add(take func(NotifyEvent)) uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.takes == nil {
		d.takes = map[uintptr]func(NotifyEvent){}
	}
	d.last++
	d.takes[d.last] = take
	return d.last
}

func (d *dispatcher) remove(number uintptr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.takes, number)
}

// dispatch is called by Windows. An event that cannot be read is handed on with
// what is known of it: that something has changed is the news.
func (d *dispatcher) dispatch(number uintptr, action NotifyAction, data []byte) {
	d.mu.Lock()
	take := d.takes[number]
	d.mu.Unlock()
	if take == nil {
		return
	}
	event, _ := parseNotifyEvent(action, data) // What was read of it.
	take(event)
}

// notifier is who calls a [dispatcher] back.
type notifier interface {
	// register has the dispatcher called with number for each event that filter
	// lets through, until handle is unregistered.
	register(filter *notifyFilter, number uintptr) (handle uintptr, err error)
	// unregister waits for the calls that are under way, so it must not be called
	// by one of them.
	unregister(handle uintptr) error
}

// watch is [WatchDevices]. What the notifier calls hands the news on and waits for
// nobody; all else, unregistering above all, is done by the caller's goroutine.
func watch(ctx context.Context, d *dispatcher, n notifier, interfaces []GUID, takes func(NotifyEvent) bool, changed func()) (err error) {
	happened := make(chan struct{}, 1)
	number := d.add(func(e NotifyEvent) {
		if !takes(e) {
			return
		}
		select {
		case happened <- struct{}{}:
		default: // It is to be told already.
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
		case <-happened:
			changed()
		}
	}
}
