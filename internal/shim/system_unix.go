//go:build unix

package shim

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// exec replaces this process by the real shim at path.
func (s *shim) exec(path string) (int, error) {
	if err := syscall.Exec(path, append([]string{path}, s.args...), s.env); err != nil {
		return 0, fmt.Errorf("directx-nri: run %s: %w", path, err)
	}
	return 0, nil
}

// keepOwner sets the owner of the file at path to that of info.
func keepOwner(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() && int(stat.Gid) == os.Getegid() {
		return nil
	}
	return os.Lchown(path, int(stat.Uid), int(stat.Gid))
}
