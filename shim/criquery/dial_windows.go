package criquery

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// busyInterval is the time between attempts while all instances of the pipe are busy.
const busyInterval = 5 * time.Millisecond

// dial connects to a named pipe. Its handle is overlapped: on a synchronous one, a read would block the write
// that containerd waits for.
// https://learn.microsoft.com/windows/win32/ipc/named-pipe-client
func dial(address string) (*os.File, error) {
	name, err := windows.UTF16PtrFromString(address)
	if err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		// containerd must not act as this process, which runs as SYSTEM: another program could have the pipe.
		const flags = windows.FILE_FLAG_OVERLAPPED | windows.SECURITY_SQOS_PRESENT | windows.SECURITY_ANONYMOUS
		handle, err := windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE, 0, nil, windows.OPEN_EXISTING, flags, 0)
		if err == nil {
			return os.NewFile(uintptr(handle), address), nil
		}
		if !errors.Is(err, windows.ERROR_PIPE_BUSY) || attempt == 100 {
			return nil, err
		}
		time.Sleep(busyInterval)
	}
}
