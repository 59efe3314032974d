package diversion

import (
	"debug/buildinfo"
	"errors"
	"io/fs"

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
	info, err := buildinfo.Read(f)
	closeErr := f.Close()
	if pathError, ok := errors.AsType[*fs.PathError](errors.Join(err, closeErr)); ok {
		return false, pathError
	}
	return err == nil && info.Path == mainPackage, nil // Other programs can have no build information.
}
