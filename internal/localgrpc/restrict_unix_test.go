//go:build unix

package localgrpc

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
)

func needsUnixSockets(*testing.T) {}

func checkRestricted(t *testing.T, path string) {
	t.Helper()
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: mode %v, error %v, want 0600", path, info.Mode(), err)
	}
}

// shutDown refuses further connections. Closing l alone does not: a process that a
// parallel test starts has a copy of the descriptor until it executes its program,
// and for a moment after syscall.ForkLock is released.
func shutDown(l *net.UnixListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var shutdownErr error
	err = raw.Control(func(fd uintptr) { shutdownErr = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	return errors.Join(err, shutdownErr)
}
