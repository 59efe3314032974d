package hostfiles

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
			return false, fmt.Errorf("%s: %w", f.Name(), errNotRegular)
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

// open opens a file that is known to be regular: a FIFO would block.
func (r Root) open(path string) (*os.File, error) {
	here, err := r.visible(path)
	if err != nil {
		return nil, err
	}
	return os.Open(filepath.Clean(here))
}
