//go:build unix

package access

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
)

func createPrivate(dir string) error { return os.MkdirAll(dir, 0o700) }

// CheckPrivate returns an error that matches [ErrNotPrivate] when dir is not a directory or a user
// other than root and the calling one can write to it.
func CheckPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err == nil && !info.IsDir() {
		return newError(dir, ErrNotPrivate, "not a directory", "remove it")
	}
	return checkWriters(dir, info, err, ErrNotPrivate, "700")
}

// CheckFile returns an error that matches [ErrUntrusted] when a user other than root and the
// calling one owns the file at path or can write to it.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	return checkWriters(path, info, err, ErrUntrusted, "go-w")
}

// CheckOpen is [CheckFile] for an open file, even if another file has its path now.
func CheckOpen(f *os.File) error {
	info, err := f.Stat()
	return checkWriters(f.Name(), info, err, ErrUntrusted, "go-w")
}

// OpenLog opens the log file at path for appending, and creates it if necessary. Its error matches
// [ErrUntrusted] if others can write to the file. It does not follow a symbolic link, and does not wait
// for the reader of a named pipe: others may have created them if they can write to the directory.
func OpenLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if err := CheckOpen(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// CheckDirectory is [CheckFile] for a directory.
func CheckDirectory(dir string) error { return CheckFile(dir) }

// CheckProgram is [CheckFile] for a program that runs as the system. path is its path below root. It returns
// the path with all links followed, whose directories are checked, too.
func CheckProgram(root, path string) (program string, err error) {
	if program, err = securejoin.SecureJoin(root, path); err != nil {
		return "", fmt.Errorf("check %s: %w", path, err)
	}
	for at := program; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		mode := "go-w"
		if err == nil && info.IsDir() && info.Mode()&fs.ModeSticky != 0 {
			mode = "" // Others cannot replace what root has in a sticky directory.
		}
		if err := checkWriters(at, info, err, ErrUntrusted, mode); err != nil {
			return "", err
		}
		if at == root {
			return program, nil
		}
	}
}

// checkWriters checks the owner and, unless mode is "", who else can write. The remedy in the error
// is chmod with mode.
func checkWriters(path string, info fs.FileInfo, err, reason error, mode string) error {
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return newError(path, reason, "it does not belong to root", "remove it, or give it to root when you trust its content")
	case mode != "" && info.Mode().Perm()&0o022 != 0:
		return newError(path, reason, fmt.Sprintf("mode %04o", info.Mode().Perm()),
			fmt.Sprintf("remove it, or 'chmod %s' it when you trust its content", mode))
	}
	return nil
}
