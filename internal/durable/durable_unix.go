//go:build unix

package durable

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

func replaceFile(temp, path string) error { return os.Rename(temp, path) }

// linkFile gives temp its name only when the name is free: link(2) never
// replaces, rename(2) does.
func linkFile(temp, path string) error {
	if err := os.Link(temp, path); err != nil {
		return err
	}
	return os.Remove(temp)
}

// Rename gives the file temp the name path, in one step. It is not synced.
func Rename(temp, path string) error { return os.Rename(temp, path) }

// Open opens path for reading, in a way that keeps nobody from renaming or
// removing it meanwhile.
func Open(path string) (*os.File, error) { return os.Open(path) }

func syncFolder(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// MakePrivate makes folder, and those above it where they are missing, and
// sees to it that only the calling user can read it. A folder that others
// could write to, or that belongs to another user, is refused with an error that
// matches [ErrNotPrivate]: what they may have put there cannot be told from
// ours.
func MakePrivate(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("make folder %s: %w", folder, err)
	}
	if err := CheckPrivate(folder); err != nil {
		return err
	}
	if err := os.Chmod(folder, 0o700); err != nil {
		return fmt.Errorf("keep folder %s from other users: %w", folder, err)
	}
	return nil
}

// CheckPrivate returns an error that matches [ErrNotPrivate] when somebody
// other than the calling user or root could have written into folder.
func CheckPrivate(folder string) error {
	info, err := os.Lstat(folder)
	if err != nil {
		return fmt.Errorf("check folder %s: %w", folder, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir() || !ok:
		return fmt.Errorf("check folder %s: %w: it is not a folder; remove it", folder, ErrNotPrivate)
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("check folder %s: %w: it belongs to user %d; remove it, or give it to root when you trust its content", folder, ErrNotPrivate, stat.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("check folder %s: %w: others can write to it (mode %04o); remove it, or 'chmod 700' it when you trust its content", folder, ErrNotPrivate, info.Mode().Perm())
	}
	return nil
}
