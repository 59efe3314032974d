package hostfiles

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// ErrNotRegular tells that what is at a path is no regular file.
var ErrNotRegular = errors.New("it is not a regular file")

// maxCompared is the size in bytes up to which two files are compared. A container's
// start waits for it.
const maxCompared = 16 << 20

// Final returns the path that path leads to in the end: with every symbolic link,
// junction and mount point followed, and with long names in place of short (8.3)
// ones. regular tells whether a regular file is there; otherwise it is a folder, or
// something else. The error matches [fs.ErrNotExist] when there is nothing.
//
// Unlike [Root.Resolve] it is for paths that somebody who is not trusted chose.
func (r Root) Final(path string) (final string, regular bool, err error) { return r.final(path) }

// SameContent tells whether the files at two of the node's paths hold the same
// bytes. Large files count as different.
func (r Root) SameContent(a, b string) (bool, error) {
	x, err := r.open(a)
	if err != nil {
		return false, err
	}
	defer func() { _ = x.Close() }() // Nothing was written.
	y, err := r.open(b)
	if err != nil {
		return false, err
	}
	defer func() { _ = y.Close() }()
	for _, f := range []*os.File{x, y} {
		info, err := f.Stat()
		switch {
		case err != nil:
			return false, err
		case !info.Mode().IsRegular():
			return false, fmt.Errorf("%s: %w", f.Name(), ErrNotRegular)
		case info.Size() > maxCompared:
			return false, nil
		}
	}
	return sameBytes(x, y)
}

func sameBytes(x, y io.Reader) (bool, error) {
	const chunk = 64 << 10
	a, b := make([]byte, chunk), make([]byte, chunk)
	for {
		n, errA := io.ReadFull(x, a)
		m, errB := io.ReadFull(y, b)
		if !bytes.Equal(a[:n], b[:m]) {
			return false, nil
		}
		endA, endB := atEnd(errA), atEnd(errB)
		if endA || endB {
			return endA && endB, nil
		}
		if err := errors.Join(errA, errB); err != nil {
			return false, err
		}
	}
}

func atEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// open opens the file that a path of the node leads to. Whoever calls has looked
// at what is there: a FIFO would block.
func (r Root) open(path string) (*os.File, error) {
	here, err := r.seen(path)
	if err != nil {
		return nil, err
	}
	return os.Open(filepath.Clean(here))
}
