//go:build unix

package config

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

// checkVolume checks who can write an open file. It accepts a directory that anyone can write if it
// is mounted read-only and is not the node's usual directory: the kubelet creates the directory of
// a ConfigMap with mode 0777 where only root can reach it, and mounts it read-only.
func checkVolume(f *os.File, usualDir string) error { return checkVolumeBy(f, usualDir, isReadOnly) }

func checkVolumeBy(f *os.File, usualDir string, isReadOnly func(*os.File) bool) error {
	dir := filepath.Dir(f.Name())
	err := access.CheckPrivate(dir)
	if errors.Is(err, access.ErrNotPrivate) && !isWithinPOSIX(usualDir, dir) && isReadOnly(f) {
		err = nil
	}
	err = cmp.Or(err, access.CheckOpen(f))
	if !isWithinPOSIX(usualDir, dir) && (errors.Is(err, access.ErrNotPrivate) || errors.Is(err, access.ErrUntrusted)) {
		// Unwrap removes the remedy of package access, which could be to change /tmp.
		err = errlog.WithRemedy(errors.Unwrap(err), "use a copy in "+usualDir+" that only root can change")
	}
	return err
}

// isReadOnly reports whether the file system of f is mounted read-only.
func isReadOnly(f *os.File) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &fs) == nil && fs.Flags&unix.ST_RDONLY != 0
}
