package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// replaceFile renames in one step and returns when the rename is on disk.
// https://learn.microsoft.com/windows/win32/api/winbase/nf-winbase-movefileexw
func replaceFile(temp, path string) error {
	return moveFile(temp, path, windows.MOVEFILE_REPLACE_EXISTING|windows.MOVEFILE_WRITE_THROUGH)
}

// linkFile leaves MOVEFILE_REPLACE_EXISTING out, so that a name that is taken
// is an error.
func linkFile(temp, path string) error { return moveFile(temp, path, windows.MOVEFILE_WRITE_THROUGH) }

func moveFile(from, to string, flags uint32) error {
	fromPtr, err := windows.UTF16PtrFromString(from)
	if err != nil {
		return err
	}
	toPtr, err := windows.UTF16PtrFromString(to)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(sharingPatience)
	for {
		err := windows.MoveFileEx(fromPtr, toPtr, flags)
		if err == nil {
			return nil
		}
		busy := errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_ACCESS_DENIED)
		if !busy || time.Now().After(deadline) {
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
		}
		time.Sleep(time.Millisecond)
	}
}

// sharingPatience is how long a file is waited for that others have open in a
// way that keeps us out, as programs that look into each new file, such as virus
// scanners, do for a moment.
const sharingPatience = 500 * time.Millisecond

// Rename gives the file temp the name path, in one step, and waits a little for
// others who have the file at path open. It is not synced.
func Rename(temp, path string) error { return moveFile(temp, path, windows.MOVEFILE_REPLACE_EXISTING) }

// Open opens path for reading, in a way that keeps nobody from renaming or
// removing it meanwhile. A file that is just being renamed can be opened by
// nobody for a moment, so Open tries for a while.
// https://learn.microsoft.com/windows/win32/fileio/creating-and-opening-files
func Open(path string) (*os.File, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	deadline := time.Now().Add(sharingPatience)
	for {
		handle, err := windows.CreateFile(name, windows.GENERIC_READ,
			windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil,
			windows.OPEN_EXISTING, windows.FILE_ATTRIBUTE_NORMAL, 0)
		if err == nil {
			return os.NewFile(uintptr(handle), path), nil
		}
		if !errors.Is(err, windows.ERROR_SHARING_VIOLATION) || time.Now().After(deadline) {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		time.Sleep(time.Millisecond)
	}
}

// syncFolder has nothing to do: MOVEFILE_WRITE_THROUGH did it.
func syncFolder(string) error { return nil }

// privateSDDL gives SYSTEM and Administrators full control and nobody else
// anything, inherited by what is inside, with inheritance from above cut off.
// https://learn.microsoft.com/windows/win32/secauthz/security-descriptor-string-format
const privateSDDL = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// MakePrivate makes folder, and those above it where they are missing, and
// sees to it that only SYSTEM and Administrators can reach it. A folder that
// belongs to anybody else is refused with an error that matches
// [ErrNotPrivate]: what they may have put there cannot be told from ours.
func MakePrivate(folder string) error {
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return fmt.Errorf("make folder %s: %w", folder, err)
	}
	descriptor, err := windows.SecurityDescriptorFromString(privateSDDL)
	if err != nil {
		return fmt.Errorf("make folder %s: %w", folder, err)
	}
	name, err := windows.UTF16PtrFromString(folder)
	if err != nil {
		return fmt.Errorf("make folder %s: %w", folder, err)
	}
	attributes := windows.SecurityAttributes{SecurityDescriptor: descriptor}
	attributes.Length = uint32(unsafe.Sizeof(attributes))
	// Made with its descriptor, the folder is at no time open to others.
	err = windows.CreateDirectory(name, &attributes)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, windows.ERROR_ALREADY_EXISTS):
		return fmt.Errorf("make folder %s: %w", folder, err)
	}
	if err := CheckPrivate(folder); err != nil {
		return err
	}
	acl, _, err := descriptor.DACL()
	if err != nil {
		return fmt.Errorf("keep folder %s from other users: %w", folder, err)
	}
	err = windows.SetNamedSecurityInfo(folder, windows.SE_FILE_OBJECT,
		windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, acl, nil)
	if err != nil {
		return fmt.Errorf("keep folder %s from other users: %w", folder, err)
	}
	return nil
}

// CheckPrivate returns an error that matches [ErrNotPrivate] when folder does
// not belong to SYSTEM, Administrators or the calling user.
func CheckPrivate(folder string) error {
	info, err := os.Lstat(folder)
	if err != nil {
		return fmt.Errorf("check folder %s: %w", folder, err)
	}
	if !info.IsDir() {
		return fmt.Errorf("check folder %s: %w: it is not a folder; remove it", folder, ErrNotPrivate)
	}
	descriptor, err := windows.GetNamedSecurityInfo(folder, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("check folder %s: read its owner: %w", folder, err)
	}
	owner, _, err := descriptor.Owner()
	if err != nil {
		return fmt.Errorf("check folder %s: read its owner: %w", folder, err)
	}
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return fmt.Errorf("check folder %s: read who we are: %w", folder, err)
	}
	if !owner.IsWellKnown(windows.WinLocalSystemSid) && !owner.IsWellKnown(windows.WinBuiltinAdministratorsSid) && !owner.Equals(user.User.Sid) {
		return fmt.Errorf("check folder %s: %w: it belongs to %s; remove it, or give it to Administrators when you trust its content", folder, ErrNotPrivate, owner)
	}
	return nil
}
