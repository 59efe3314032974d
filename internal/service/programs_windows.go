package service

import (
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
)

// RunningPrograms returns the paths of the running programs with a file name, except paths that
// cannot be read. Any user can start a program with that name.
func RunningPrograms(name string) (paths []string) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = windows.CloseHandle(snapshot) }()
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if !strings.EqualFold(windows.UTF16ToString(entry.ExeFile[:]), name) {
			continue
		}
		process, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, entry.ProcessID)
		if err != nil {
			continue
		}
		var path [windows.MAX_LONG_PATH]uint16
		size := uint32(len(path))
		if windows.QueryFullProcessImageName(process, 0, &path[0], &size) == nil {
			paths = append(paths, windows.UTF16ToString(path[:size]))
		}
		_ = windows.CloseHandle(process)
	}
	return paths
}
