package durable

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// replaceFile renames temp to path and returns when the change is on disk.
// https://learn.microsoft.com/windows/win32/api/winbase/nf-winbase-movefileexw
func replaceFile(temp, path string) error {
	return moveFile(temp, path, windows.MOVEFILE_REPLACE_EXISTING|windows.MOVEFILE_WRITE_THROUGH)
}

// Move renames temp to path unless path exists. Its error matches [fs.ErrExist] then.
func Move(temp, path string) error { return moveFile(temp, path, windows.MOVEFILE_WRITE_THROUGH) }

// Rename renames temp to path atomically. It does not sync.
func Rename(temp, path string) error { return moveFile(temp, path, windows.MOVEFILE_REPLACE_EXISTING) }

func moveFile(from, to string, flags uint32) error {
	fromPtr, err := windows.UTF16PtrFromString(from)
	toPtr, toErr := windows.UTF16PtrFromString(to)
	if err = errors.Join(err, toErr); err != nil {
		return err
	}
	return Retry(func() error {
		if err := windows.MoveFileEx(fromPtr, toPtr, flags); err != nil {
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
		}
		return nil
	}, windows.ERROR_SHARING_VIOLATION, windows.ERROR_ACCESS_DENIED)
}

// Open opens path for reading without keeping others from renaming or removing it. It retries for a
// while because a file that is being renamed cannot be opened.
// https://learn.microsoft.com/windows/win32/fileio/creating-and-opening-files
func Open(path string) (f *os.File, err error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	err = Retry(func() error {
		handle, err := windows.CreateFile(name, windows.GENERIC_READ,
			windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil,
			windows.OPEN_EXISTING, windows.FILE_ATTRIBUTE_NORMAL, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		f = os.NewFile(uintptr(handle), path)
		return nil
	}, windows.ERROR_SHARING_VIOLATION)
	return f, err
}
