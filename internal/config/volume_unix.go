//go:build unix

package config

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"directx-nri/internal/durable"
)

// checkVolume checks who can write a file, whose usual path is for the error. The
// kubelet creates the directory of a ConfigMap with mode 0777 where only root can
// reach it, and mounts it read-only.
func checkVolume(path, usual string) error { return checkVolumeBy(path, usual, isReadOnly) }

func checkVolumeBy(path, usual string, isReadOnly func(path string) (bool, error)) error {
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
	if err == nil {
		err = durable.CheckFile(path)
	}
	if access := (*durable.AccessError)(nil); errors.As(err, &access) && path != usual {
		access.Remedy = fmt.Sprintf("use a copy that only root can change: install -D -m 644 %s %s", path, usual)
	}
	return err
}

// isReadOnly reports whether the file system of path is mounted read-only.
func isReadOnly(path string) (bool, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(path, &fs)
	return fs.Flags&unix.ST_RDONLY != 0, err
}
