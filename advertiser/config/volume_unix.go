//go:build unix

package config

import (
	"errors"
	"fmt"
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
	path, dir := f.Name(), filepath.Dir(f.Name())
	elsewhere := !isWithinPOSIX(usualDir, dir)
	err := access.CheckPrivate(dir)
	if errors.Is(err, access.ErrNotPrivate) && elsewhere && isReadOnly(f) {
		err = nil
	}
	if err == nil {
		err = access.CheckOpen(f)
	}
	if elsewhere && (errors.Is(err, access.ErrNotPrivate) || errors.Is(err, access.ErrUntrusted)) {
		fix := fmt.Sprintf("use a copy that only root can change: install -D -m 644 %s %s",
			path, filepath.Join(usualDir, filepath.Base(path)))
		err = errlog.WithRemedy(errors.Unwrap(err), fix) // Unwrap removes the remedy of package access.
	}
	return err
}

// isReadOnly reports whether the file system of f is mounted read-only.
func isReadOnly(f *os.File) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &fs) == nil && fs.Flags&unix.ST_RDONLY != 0
}
