//go:build unix

package durable

import (
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
		return &AccessError{dir, ErrNotPrivate, "not a directory", "remove it"}
	}
	return checkWriters(dir, info, err, ErrNotPrivate, "700")
}

// CheckFile returns an error that matches [ErrUntrusted] when a user other than
// root and the calling one owns the file at path or can write to it.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	return checkWriters(path, info, err, ErrUntrusted, "go-w")
}

// CheckOpen is [CheckFile] for an open file, whatever its path names now.
func CheckOpen(f *os.File) error {
	info, err := f.Stat()
	return checkWriters(f.Name(), info, err, ErrUntrusted, "go-w")
}

func checkWriters(path string, info fs.FileInfo, err, reason error, mode string) error {
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return &AccessError{path, reason, "it does not belong to root", "remove it, or give it to root when you trust its content"}
	case info.Mode().Perm()&0o022 != 0:
		return &AccessError{path, reason, fmt.Sprintf("mode %04o", info.Mode().Perm()), fmt.Sprintf("remove it, or 'chmod %s' it when you trust its content", mode)}
	}
	return nil
}
