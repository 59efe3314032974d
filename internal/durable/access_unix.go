//go:build unix

package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

func createPrivate(dir string) error { return os.MkdirAll(dir, 0o700) }

// CheckPrivate returns an error that matches [ErrNotPrivate] when dir is not a
// directory or a user other than root and the calling one can write to it.
func CheckPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err == nil && !info.IsDir() {
		err = errors.New("not a directory; remove it")
	} else if err == nil {
		err = checkWriters(info, "700")
	}
	return untrusted(dir, err, ErrNotPrivate)
}

// CheckFile returns an error that matches [ErrUntrusted] when a user other than
// root and the calling one owns the file at path or can write to it.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	if err == nil {
		err = checkWriters(info, "go-w")
	}
	return untrusted(path, err, ErrUntrusted)
}

// CheckOwner is [CheckFile] on Unix.
func CheckOwner(path string) error { return CheckFile(path) }

func checkWriters(info fs.FileInfo, remedy string) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return errors.New("it does not belong to root; remove it, or give it to root when you trust its content")
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("mode %04o; remove it, or 'chmod %s' it when you trust its content", info.Mode().Perm(), remedy)
	}
	return nil
}

// untrusted adds path to err, and reason unless the path cannot be read.
func untrusted(path string, err, reason error) error {
	var pathError *fs.PathError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pathError):
		return fmt.Errorf("check %s: %w", path, err)
	}
	return fmt.Errorf("check %s: %w: %w", path, reason, err)
}
