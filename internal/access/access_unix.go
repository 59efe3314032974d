//go:build unix

package access

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
)

func createPrivate(dir string) error { return os.MkdirAll(dir, 0o700) }

// CheckPrivate returns an error that matches [ErrUntrusted] when dir is not a directory or a user
// other than root and the calling one can write to it.
func CheckPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err == nil && !info.IsDir() {
		return newError(dir, "not a directory")
	}
	return check(dir, info, err, true)
}

// CheckOpen is [CheckTrusted] for an open file alone, even if another file has its path now.
func CheckOpen(f *os.File) error {
	info, err := f.Stat()
	return check(f.Name(), info, err, true)
}

// CheckOwner returns an error that matches [ErrUntrusted] when a user other than root and the calling
// one owns the file at path.
func CheckOwner(path string) error {
	info, err := os.Lstat(path)
	return check(path, info, err, false)
}

// CheckTrusted returns an error that matches [ErrUntrusted] when a user other than root and the calling
// one can change or replace the file or directory at path, or a directory above it. path is below root,
// "" for this system's. The result is the path with all links followed.
func CheckTrusted(root, path string) (final string, err error) {
	root = filepath.Join("/", root)
	if final, err = securejoin.SecureJoin(root, path); err != nil {
		return "", fmt.Errorf("check %s: %w", path, err)
	}
	for at := final; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		// Others cannot replace what root has in a sticky directory.
		isSticky := err == nil && at != final && info.Mode()&fs.ModeSticky != 0
		if err := check(at, info, err, !isSticky); err != nil {
			return "", err
		}
		if at == root {
			return final, nil
		}
	}
}

// check checks the owner and, with writers, who else can write.
func check(path string, info fs.FileInfo, err error, writers bool) error {
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return newError(path, "it does not belong to root")
	case writers && info.Mode().Perm()&0o022 != 0:
		return newError(path, fmt.Sprintf("mode %04o", info.Mode().Perm()))
	}
	return nil
}
