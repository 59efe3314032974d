// Package unixsocket listens on Unix sockets that other programs remove,
// replace or leave behind.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// maxPath is the longest path that the kernel takes: sun_path of sockaddr_un
// less its final zero. https://man7.org/linux/man-pages/man7/unix.7.html,
// afunix.h of the Windows SDK.
const maxPath = 107

// probeTimeout bounds how long a live process may take to accept.
const probeTimeout = time.Second

// ErrInUse tells that another live process listens on the socket.
var ErrInUse = errors.New("another process listens on this socket")

// Identity tells one socket file from another of the same path.
type Identity struct{ info fs.FileInfo }

// Identify returns the identity of the file at path. An error that matches
// [fs.ErrNotExist] tells that there is none.
func Identify(path string) (Identity, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return Identity{}, err
	}
	// On Windows the file's identity is read at the first comparison, which
	// would be of whatever is there by then.
	os.SameFile(info, info)
	return Identity{info: info}, nil
}

// Same tells whether i and other are one file. File systems give the number of
// a removed file to the next one made, so the time of creation counts too. The
// zero Identity is the same as nothing.
func (i Identity) Same(other Identity) bool {
	if i.info == nil || other.info == nil {
		return false
	}
	return os.SameFile(i.info, other.info) && i.info.ModTime().Equal(other.info.ModTime())
}

// Listener listens on a Unix socket that only the process's own account can
// connect to.
type Listener struct {
	*net.UnixListener
	path     string
	identity Identity
	close    func() error
}

// Listen makes the socket at path and listens on it. A socket that nobody
// answers on is removed first. The error matches [ErrInUse] when somebody
// does.
func Listen(ctx context.Context, path string) (*Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("listen on %s: the path of a Unix socket has at most %d bytes, choose a shorter folder", path, maxPath)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// By default Close removes whatever is at path by then, another process's
	// socket included.
	listener.SetUnlinkOnClose(false)
	l := &Listener{UnixListener: listener, path: path}
	l.close = sync.OnceValue(l.closeAndRemove)
	if l.identity, err = Identify(path); err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return l, nil
}

// Intact tells whether the path still names this listener's socket. When it
// does not, nobody can connect any more.
func (l *Listener) Intact() bool {
	now, err := Identify(l.path)
	return err == nil && now.Same(l.identity)
}

// Close stops listening and removes the socket, unless something else is at
// its path by now. Further calls do nothing and return the same.
func (l *Listener) Close() error { return l.close() }

func (l *Listener) closeAndRemove() error {
	var removed error
	if l.Intact() {
		if removed = os.Remove(l.path); errors.Is(removed, fs.ErrNotExist) {
			removed = nil
		}
	}
	return errors.Join(removed, l.UnixListener.Close())
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return errors.New("there is a file of that name that is not a socket: move it away")
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return errors.Join(ErrInUse, conn.Close())
	case IsBusy(err):
		return fmt.Errorf("%w and does not accept connections", ErrInUse)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !isRefused(err):
		// That it could not be asked does not say that nobody is there.
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// IsBusy tells from the error of a dial that somebody listens, but does not
// accept: a process that hangs or is stopped.
func IsBusy(err error) bool {
	var timeout net.Error
	return errors.Is(err, syscall.EAGAIN) || errors.As(err, &timeout) && timeout.Timeout()
}
