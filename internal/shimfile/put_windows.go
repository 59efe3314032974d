package shimfile

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/windows"
)

// put gives the file from the name path. A program that runs cannot be
// replaced, though it can be renamed: as long as somebody runs the file at path,
// put waits a little when it is told to, for a shim ends within moments, and then
// moves that file out of the way. In between containerd would find no shim for
// an instant.
func put(from, path string, wait bool) error {
	if _, err := os.Lstat(from); err != nil {
		return err
	}
	err := os.Rename(from, path)
	for try := 0; wait && try < busyTries && isBusy(err); try++ {
		time.Sleep(busyPause)
		err = os.Rename(from, path)
	}
	if err == nil || !isBusy(err) {
		return err
	}
	aside := sibling(path, retired+strconv.FormatInt(time.Now().UnixNano(), 36))
	if err := os.Rename(path, aside); err != nil {
		return err
	}
	if err := os.Rename(from, path); err != nil {
		return errors.Join(err, os.Rename(aside, path))
	}
	_ = os.Remove(aside) // It runs. A later start or the removal takes it away.
	return nil
}

// retired begins the word in the name of a shim that was moved aside while it
// ran.
const retired = "retired-"

func isBusy(err error) bool {
	return errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_SHARING_VIOLATION)
}

// isLatest tells whether the running program may speak for the file at path. It
// may be one that was moved aside as long as there is one that still runs.
func isLatest(path string) bool {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return false
	}
	prefix := strings.ToLower(filepath.Base(sibling(path, retired)))
	prefix = strings.TrimSuffix(prefix, strings.ToLower(filepath.Ext(path)))
	latest := true
	for _, entry := range entries {
		if strings.HasPrefix(strings.ToLower(entry.Name()), prefix) {
			latest = os.Remove(filepath.Join(filepath.Dir(path), entry.Name())) == nil && latest
		}
	}
	return latest
}

// isReplaced is never true: the place of a program that runs is not taken as
// long as waiting helps, and which file it was started from is not told.
func isReplaced(string) bool { return false }
