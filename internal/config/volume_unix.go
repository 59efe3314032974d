//go:build unix

package config

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"directx-nri/internal/durable"
)

// checkVolume checks who can write a file. The kubelet creates the directory of a
// ConfigMap with mode 0777 where only root can reach it, and mounts it read-only.
func checkVolume(path string) error { return checkVolumeBy(path, isReadOnly) }

func checkVolumeBy(path string, isReadOnly func(path string) (bool, error)) error {
	err := durable.CheckPrivate(filepath.Dir(path))
	if errors.Is(err, durable.ErrNotPrivate) {
		readOnly, statErr := isReadOnly(path)
		switch {
		case statErr != nil:
			return fmt.Errorf("check %s: %w", path, statErr)
		case readOnly:
			err = nil
		}
	}
	if err != nil {
		return err
	}
	return durable.CheckFile(path)
}

// isReadOnly reports whether the file system of path is mounted read-only.
func isReadOnly(path string) (bool, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(path, &fs)
	return fs.Flags&unix.ST_RDONLY != 0, err
}
