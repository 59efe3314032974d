package config

import (
	"path/filepath"

	"directx-nri/internal/durable"
	"directx-nri/internal/paths"
	"directx-nri/internal/winpath"
)

// checkVolume looks at owners alone where the file is not at its usual place:
// below C:\var\lib\kubelet, where a HostProcess pod's volumes are, what the kubelet
// makes inherits rights that every user has to folders of C:\.
func checkVolume(path string) error {
	if winpath.Equal(path, paths.Default().Config) {
		return checkStrictly(path)
	}
	if err := durable.CheckOwner(filepath.Dir(path)); err != nil {
		return err
	}
	return durable.CheckOwner(path)
}
