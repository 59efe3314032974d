package diversion

import (
	"bytes"
	"debug/buildinfo"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// mainPackage is the import path of our shim's main package.
const mainPackage = "github.com/directx-nri/directx-nri/cmd/containerd-shim-directx-v1"

// maxProgramBytes is more than any shim has.
const maxProgramBytes = 1 << 30

// isOurs reports whether the file at path is our shim, of any version, by its build information. It reads all of the
// file first, because [buildinfo.Read] does not return errors of reading.
func isOurs(path string) (bool, error) {
	data, err := durable.Read(path, maxProgramBytes)
	if err != nil {
		return false, err
	}
	info, err := buildinfo.Read(bytes.NewReader(data))
	return err == nil && info.Path == mainPackage, nil // Other programs can have no build information.
}
