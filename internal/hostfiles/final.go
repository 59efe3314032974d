package hostfiles

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

var errNotRegular = errors.New("not a regular file")

// maxCompared is the largest size in bytes of files that are compared: a
// container's start waits for it.
const maxCompared = 16 << 20

// Final returns path with all symbolic links, junctions and mount points followed
// and short (8.3) names replaced by long ones. regular reports whether it is a
// regular file. The error matches [fs.ErrNotExist] if there is no file.
//
// Unlike [Root.Resolve] it is safe for untrusted paths.
func (r Root) Final(path string) (final string, regular bool, err error) { return r.final(path) }

// SameContent reports whether two files have the same content. Large files are
// considered different.
func (r Root) SameContent(a, b string) (bool, error) {
	x, err := r.content(a)
	if err != nil {
		return false, err
	}
	y, err := r.content(b)
	return x != nil && y != nil && bytes.Equal(x, y), err
}

// content returns the content of a regular file (a FIFO would block), nil if it has
// more than maxCompared bytes.
func (r Root) content(path string) ([]byte, error) {
	here, err := r.visible(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(here)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: %w", path, errNotRegular)
	case info.Size() > maxCompared:
		return nil, nil
	}
	return os.ReadFile(here)
}
