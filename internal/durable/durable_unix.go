//go:build unix

package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// replaceFile renames temp to path and syncs the directory.
func replaceFile(temp, path string) error {
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Move renames temp to path unless path exists, which rename(2) would replace. Its error matches
// [fs.ErrExist] then.
func Move(temp, path string) error {
	if err := os.Link(temp, path); err != nil {
		return err
	}
	return os.Remove(temp)
}

// Rename renames temp to path atomically. It does not sync.
func Rename(temp, path string) error { return os.Rename(temp, path) }

// Open opens path for reading without keeping others from renaming or removing it.
func Open(path string) (*os.File, error) { return os.Open(path) }
