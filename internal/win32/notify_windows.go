package win32

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/windows"
)

// receivers are the functions that the callback calls. Windows passes the number of a receiver to the
// callback, and not a pointer, because an event can arrive after the receiver was removed. There is one
// callback for all receivers, because its memory is never freed.
//
//nolint:gochecknoglobals // See above.
var (
	receivers      sync.Map // of func(), by number
	lastReceiver   atomic.Uintptr
	notifyCallback = sync.OnceValue(func() uintptr {
		return windows.NewCallback(func(_, number uintptr, _ uint32, _, _ uintptr) uintptr {
			if changed, ok := receivers.Load(number); ok {
				changed.(func())() //nolint:forcetypeassert // WatchDevices stored it.
			}
			return uintptr(windows.ERROR_SUCCESS)
		})
	})
)

// WatchDevices calls changed after each event of the interface classes until ctx ends. changed can be
// called concurrently. It must not block, because WatchDevices waits for it when ctx ends.
func WatchDevices(ctx context.Context, interfaces []GUID, changed func()) (err error) {
	if err := available(procCM_Register_Notification); err != nil {
		return err
	}
	number := lastReceiver.Add(1)
	receivers.Store(number, changed)
	defer receivers.Delete(number)
	for _, class := range interfaces {
		var handle uintptr
		if result := windows.CONFIGRET(cmRegisterNotification(newNotifyFilter(class), number, notifyCallback(), &handle)); result != windows.CR_SUCCESS {
			return fmt.Errorf("register for device notifications: %w", result)
		}
		defer func() {
			if result := windows.CONFIGRET(cmUnregisterNotification(handle)); result != windows.CR_SUCCESS {
				err = errors.Join(err, fmt.Errorf("unregister from device notifications: %w", result))
			}
		}()
	}
	<-ctx.Done()
	return nil
}
