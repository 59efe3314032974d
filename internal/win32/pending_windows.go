package win32

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// RenameAtBoot makes Windows rename a file at its next boot, before any service starts. It does not
// replace a file that exists then.
// https://learn.microsoft.com/windows/win32/api/winbase/nf-winbase-movefileexw
func RenameAtBoot(from, to string) error {
	fromPtr, err := windows.UTF16PtrFromString(from)
	toPtr, toErr := windows.UTF16PtrFromString(to)
	if err = errors.Join(err, toErr); err != nil {
		return err
	}
	if err := windows.MoveFileEx(fromPtr, toPtr, windows.MOVEFILE_DELAY_UNTIL_REBOOT); err != nil {
		return &os.LinkError{Op: "rename at boot", Old: from, New: to, Err: err}
	}
	return nil
}

// CancelRenameAtBoot removes what [RenameAtBoot] added for the file from. Programs that look for pending renames
// would reboot the machine.
func CancelRenameAtBoot(from string) (err error) {
	const path, name = `SYSTEM\CurrentControlSet\Control\Session Manager`, "PendingFileRenameOperations"
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, path, registry.QUERY_VALUE|registry.SET_VALUE)
	if err != nil {
		return fmt.Errorf("cancel the rename of %s at boot: %w", from, err)
	}
	defer func() { err = errors.Join(err, key.Close()) }()
	list, _, err := key.GetStringsValue(name)
	rest := withoutRename(list, from)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(rest) == len(list):
		return nil
	case err == nil && len(rest) == 0:
		err = key.DeleteValue(name)
	case err == nil:
		err = key.SetStringsValue(name, rest)
	}
	if err != nil {
		return fmt.Errorf("cancel the rename of %s at boot: %w", from, err)
	}
	return nil
}
