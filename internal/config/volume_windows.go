package config

import (
	"cmp"
	"os"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// checkVolume checks who can write a file. In other directories than the usual one
// it checks owners only: what the kubelet creates below C:\var\lib\kubelet, for the
// volumes of HostProcess pods, inherits rights that all users have to C:\.
func checkVolume(f *os.File, usualDir string) error {
	path, dir := f.Name(), filepath.Dir(f.Name())
	if winpath.Equal(dir, usualDir) {
		return durable.CheckFile(path)
	}
	return cmp.Or(durable.CheckOwner(dir), durable.CheckOwner(path))
}
