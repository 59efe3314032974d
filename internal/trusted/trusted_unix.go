//go:build unix

package trusted

import (
	"fmt"
	"os"
	"syscall"
)

func check(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("check %s: %w: it does not belong to root; remove it, or give it to root when you trust its content", path, ErrUntrusted)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("check %s: %w (mode %04o); remove it, or 'chmod go-w' it when you trust its content", path, ErrUntrusted, info.Mode().Perm())
	}
	return nil
}

func checkOwner(path string) error { return check(path) }
