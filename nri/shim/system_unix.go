//go:build unix

package shim

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

const (
	usualShim = "containerd-shim-runc-v2"
	// root is where the node's files are.
	root = "/"
)

// grouping has no meaning here: containerd waits for the process that becomes
// the real shim.
type grouping int

const (
	groupTightly grouping = iota
	groupLoosely
)

// handOver becomes the real shim at path.
func (s *shim) handOver(path string) (int, error) {
	if err := syscall.Exec(path, append([]string{path}, s.call.Args...), s.call.Env); err != nil {
		return 0, fmt.Errorf("directx-nri: run %s: %w", path, err)
	}
	return 0, nil
}

// keepOwner gives the file at path the owner that info tells.
func keepOwner(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() && int(stat.Gid) == os.Getegid() {
		return nil
	}
	return os.Lchown(path, int(stat.Uid), int(stat.Gid))
}
