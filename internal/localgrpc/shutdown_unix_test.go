//go:build unix

package localgrpc

import (
	"errors"
	"net"
	"syscall"
)

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
