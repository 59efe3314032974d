package shimfile

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// rename moves the program temp to path. Windows cannot replace a running program, but it
// can rename one. rename waits for the shim at path to exit. If it does not exit, rename
// moves it to another name, and for an instant there is no shim at path.
func rename(temp, path string) error {
	err := durable.Rename(temp, path)
	if !errors.Is(err, windows.ERROR_ACCESS_DENIED) && !errors.Is(err, windows.ERROR_SHARING_VIOLATION) {
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

// removeAll removes the file or directory at path. It waits for a shim that runs to exit.
func removeAll(path string) error {
	return durable.Retry(func() error { return os.RemoveAll(path) }, windows.ERROR_ACCESS_DENIED, windows.ERROR_SHARING_VIOLATION)
}
