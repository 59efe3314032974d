package shimfile

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/windows"
)

// rename moves the program temp to path. Windows cannot replace a running program, but it
// can rename one. rename waits for the shim at path to exit. If it does not exit, rename
// moves it to another name, and for an instant there is no shim at path.
func rename(temp, path string) error {
	if err := retry(isBusy, func() error { return os.Rename(temp, path) }); !isBusy(err) {
		return err
	}
	oldPath := filepath.Join(filepath.Dir(temp), strconv.FormatInt(time.Now().UnixNano(), 36))
	if err := os.Rename(path, oldPath); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(err, os.Rename(oldPath, path))
	}
	return nil // If the old shim still runs, Remove removes it later.
}

func isBusy(err error) bool {
	return errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_SHARING_VIOLATION)
}
