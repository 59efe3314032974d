package shimfile

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/windows"
)

// rename moves the program temp to path. Windows cannot replace a running
// program but can rename it: rename waits for the shim at path to exit, and if
// it does not, moves it aside. For an instant there is no shim at path then.
func rename(temp, path string) error {
	if err := retry(isBusy, func() error { return os.Rename(temp, path) }); !isBusy(err) {
		return err
	}
	aside := filepath.Join(filepath.Dir(temp), strconv.FormatInt(time.Now().UnixNano(), 36))
	if err := os.Rename(path, aside); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(err, os.Rename(aside, path))
	}
	return nil // The removal of the shim removes aside if it still runs now.
}

func isBusy(err error) bool {
	return errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_SHARING_VIOLATION)
}
