package win32

import (
	"context"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Windows never gives a callback's memory back, so there is one for all, and one
// table of those who wait for it.
//
//nolint:gochecknoglobals // As long-lived as the process: see above.
var (
	notifications  dispatcher
	notifyCallback = sync.OnceValue(func() uintptr {
		return windows.NewCallback(func(_, number uintptr, action uint32, data *byte, size uint32) uintptr {
			var event []byte
			if data != nil {
				event = unsafe.Slice(data, size)
			}
			notifications.dispatch(number, NotifyAction(action), event)
			return uintptr(windows.ERROR_SUCCESS)
		})
	})
)

// WatchDevices calls changed after each event that takes wants, until ctx ends:
// those of the interface classes, and those of all device instances. Events close
// to each other may be told as one. changed is called from one goroutine at a
// time; takes is called on Windows' threads, several at once, and must not block.
//
// An error that matches [errors.ErrUnsupported] tells a Windows that does not
// notify.
func WatchDevices(ctx context.Context, interfaces []GUID, takes func(NotifyEvent) bool, changed func()) error {
	for _, proc := range []*windows.LazyProc{procCM_Register_Notification, procCM_Unregister_Notification} {
		if err := available(proc); err != nil {
			return err
		}
	}
	return watch(ctx, &notifications, configManager{}, interfaces, takes, changed)
}

// configManager is Windows' own [notifier].
type configManager struct{}

func (configManager) register(filter *notifyFilter, number uintptr) (handle uintptr, err error) {
	if err := configured(cmRegisterNotification(filter, number, notifyCallback(), &handle)); err != nil {
		return 0, fmt.Errorf("have Windows tell of devices: %w", err)
	}
	return handle, nil
}

func (configManager) unregister(handle uintptr) error {
	if err := configured(cmUnregisterNotification(handle)); err != nil {
		return fmt.Errorf("have Windows no longer tell of devices: %w", err)
	}
	return nil
}
