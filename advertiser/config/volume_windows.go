package config

import (
	"os"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// checkVolume checks who can write a file. Outside of the node's usual directory, it checks the
// owners only: the volumes of HostProcess pods, which the kubelet creates below C:\var\lib\kubelet,
// inherit the rights of all users to C:\.
func checkVolume(f *os.File, usualDir string) error {
	path, dir := f.Name(), filepath.Dir(f.Name())
	if winpath.EqualOrBelow(usualDir, dir) {
		_, err := access.CheckTrusted("", path)
		return err
	}
	if err := access.CheckOwner(dir); err != nil {
		return err
	}
	return access.CheckOwner(path)
}
