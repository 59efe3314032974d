package diversion

import (
	"debug/buildinfo"
	"errors"
	"io"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// mainPackage is the import path of our shim's main package.
const mainPackage = "github.com/directx-nri/directx-nri/cmd/containerd-shim-directx-v1"

// isOurs reports whether the file at path is our shim, of any version, by its build information.
func isOurs(path string) (bool, error) {
	f, err := durable.Open(path)
	if err != nil {
		return false, err
	}
	file := reader{file: f}
	info, err := buildinfo.Read(&file)
	if err := errors.Join(file.err, f.Close()); err != nil {
		return false, err
	}
	return err == nil && info.Path == mainPackage, nil // Other programs can have no build information.
}

// reader keeps the error of a read, which [buildinfo.Read] does not return.
type reader struct {
	file io.ReaderAt
	err  error
}

// ReadAt implements [io.ReaderAt].
func (r *reader) ReadAt(data []byte, offset int64) (int, error) {
	n, err := r.file.ReadAt(data, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
