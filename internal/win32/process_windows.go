package win32

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// Process is a process of this system.
type Process struct {
	ID, Parent uint32
	// Name is the file name with which its program was started.
	Name string
}

// Processes returns all processes. The parent of a process can have ended, and another one can have its ID.
// https://learn.microsoft.com/windows/win32/api/tlhelp32/nf-tlhelp32-createtoolhelp32snapshot
func Processes() (list []Process, err error) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	defer func() { err = errors.Join(err, windows.CloseHandle(snapshot)) }()
	var entry windows.ProcessEntry32
	entry.Size = uint32(unsafe.Sizeof(entry))
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		list = append(list, Process{entry.ProcessID, entry.ParentProcessID, windows.UTF16ToString(entry.ExeFile[:])})
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	return list, nil
}

// ProcessPath returns the path of the program of a process.
// https://learn.microsoft.com/windows/win32/api/winbase/nf-winbase-queryfullprocessimagenamew
func ProcessPath(id uint32) (path string, err error) {
	process, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, id)
	if err != nil {
		return "", fmt.Errorf("open process %d: %w", id, err)
	}
	defer func() { err = errors.Join(err, windows.CloseHandle(process)) }()
	buffer := make([]uint16, windows.MAX_LONG_PATH)
	size := uint32(len(buffer))
	if err := windows.QueryFullProcessImageName(process, 0, &buffer[0], &size); err != nil {
		return "", fmt.Errorf("find the program of process %d: %w", id, err)
	}
	return windows.UTF16ToString(buffer[:size]), nil
}

// ServiceCommand returns the command line of a service. Its error matches [fs.ErrNotExist] if there is no such service.
// The service manager of Wine does not return it.
func ServiceCommand(name string) (line string, err error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Services\`+name, registry.QUERY_VALUE)
	if err != nil {
		return "", fmt.Errorf("find the service %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, key.Close()) }()
	line, kind, err := key.GetStringValue("ImagePath")
	if err == nil && kind == registry.EXPAND_SZ {
		line, err = registry.ExpandString(line)
	}
	if err != nil {
		return "", fmt.Errorf("find the program of the service %s: %w", name, err)
	}
	return line, nil
}
