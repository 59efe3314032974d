//go:build unix

package config

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/internal/access"
)

// checkVolume checks who can write an open file. It accepts a directory that anyone can write if it
// is mounted read-only and is not the node's usual directory: the kubelet creates the directory of
// a ConfigMap with mode 0777 where only root can reach it, and mounts it read-only.
func checkVolume(f *os.File, usualDir string) error { return checkVolumeBy(f, usualDir, isReadOnly) }

func checkVolumeBy(f *os.File, usualDir string, isReadOnly func(*os.File) bool) error {
	dir := filepath.Dir(f.Name())
	err := access.CheckPrivate(dir)
	if errors.Is(err, access.ErrUntrusted) && !isWithinPOSIX(usualDir, dir) && isReadOnly(f) {
		err = nil
	}
	return cmp.Or(err, access.CheckOpen(f))
}

// isReadOnly reports whether the file system of f is mounted read-only.
func isReadOnly(f *os.File) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &fs) == nil && fs.Flags&unix.ST_RDONLY != 0
}
