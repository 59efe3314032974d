package durable

import (
	"errors"
	"io/fs"
	"os"
)

// Exists reports whether there is a file at path. It is true if that is unknown: what cannot
// be looked up may be there.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
