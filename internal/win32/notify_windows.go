package win32

import (
	"context"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/windows"
)

// The memory of callbacks is never freed, so there is one for all receivers.
//
//nolint:gochecknoglobals // See above.
var (
	notifications  dispatcher
	notifyCallback = sync.OnceValue(func() uintptr {
		return windows.NewCallback(func(_, number uintptr, _ uint32, data *byte, size uint32) uintptr {
			var event []byte
			if data != nil {
				event = unsafe.Slice(data, size)
			}
			notifications.dispatch(number, event)
			return uintptr(windows.ERROR_SUCCESS)
		})
	})
)

// WatchDevices calls changed after events of the interface classes and of all device
// instances for which filter returns true, until ctx ends. Events in quick succession
// are reported as one. changed is not called concurrently; filter is, and must not
// block.
func WatchDevices(ctx context.Context, interfaces []GUID, filter func(NotifyEvent) bool, changed func()) error {
	for _, proc := range []*windows.LazyProc{procCM_Register_Notification, procCM_Unregister_Notification} {
		if err := available(proc); err != nil {
			return err
		}
	}
	return watch(ctx, &notifications, configManager{}, interfaces, filter, changed)
}

// configManager is Windows' [notifier].
type configManager struct{}

func (configManager) register(filter *notifyFilter, number uintptr) (handle uintptr, err error) {
	if err := configError(cmRegisterNotification(filter, number, notifyCallback(), &handle)); err != nil {
		return 0, fmt.Errorf("register for device notifications: %w", err)
	}
	return handle, nil
}

func (configManager) unregister(handle uintptr) error {
	if err := configError(cmUnregisterNotification(handle)); err != nil {
		return fmt.Errorf("unregister from device notifications: %w", err)
	}
	return nil
}
