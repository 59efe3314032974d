//go:build unix

package config

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"directx-nri/internal/durable"
)

// checkVolume is checkStrictly for a file that may be in a read-only volume. The
// kubelet makes a ConfigMap's folder with mode 0777 in a place that only root can
// reach, and mounts it read-only into the container.
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

// isReadOnly tells whether the file system is mounted so that nothing at path can
// be changed through it.
func isReadOnly(path string) (bool, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(path, &fs)
	return fs.Flags&unix.ST_RDONLY != 0, err
}
