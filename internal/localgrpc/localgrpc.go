// Package localgrpc connects to gRPC servers of this machine, such as containerd and the
// kubelet, on Unix sockets and named pipes. It also listens on Unix sockets.
package localgrpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// maxMessageBytes is the limit of the kubelet's own clients for CRI and PodResources
// answers. Those of full nodes exceed gRPC's default, a quarter of it.
const maxMessageBytes = 16 << 20

// Dial returns a connection to the server at address: the path of a Unix socket, or the name of a
// pipe such as \\.\pipe\containerd-containerd. Either may be a URL as in the kubelet's
// configuration, unix:///run/x.sock or npipe:////./pipe/x. It connects at the first call. Calls to
// pipes fail on systems other than Windows.
func Dial(address string) (*grpc.ClientConn, error) {
	path, isPipe := ParseAddress(address)
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		if isPipe {
			return dialPipe(ctx, path)
		}
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	connection, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return connection, nil
}

// ParseAddress returns the path of the socket or the name of the pipe. In the address of a
// pipe, slashes and backslashes are the same. It can begin with any number of them, with or
// without the machine ".": the kubelet writes npipe://\\.\pipe\kubelet-pod-resources.
func ParseAddress(address string) (path string, isPipe bool) {
	name, isPipe := strings.CutPrefix(address, "npipe:")
	if !isPipe && !strings.HasPrefix(address, `\\.\`) {
		return strings.TrimPrefix(strings.TrimPrefix(address, "unix:"), "//"), false
	}
	name = strings.TrimLeft(strings.ReplaceAll(name, "/", `\`), `\`)
	return `\\.\` + strings.TrimPrefix(name, `.\`), true
}

// maxPath is the size of sun_path in sockaddr_un, less the terminating zero.
// https://man7.org/linux/man-pages/man7/unix.7.html, afunix.h of the Windows SDK.
const maxPath = 107

// probeTimeout bounds the wait for a process that listens on the socket to accept a connection.
const probeTimeout = time.Second

// ErrInUse is returned by [Listen] when another process listens on the socket.
var ErrInUse = errors.New("another process listens on this socket")

// FileIdentity distinguishes a socket file from others that had the same path.
type FileIdentity struct{ info fs.FileInfo }

// Identify returns the identity of the file at path. The error matches
// [fs.ErrNotExist] when there is no file.
func Identify(path string) (FileIdentity, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return FileIdentity{}, err
	}
	// On Windows the file is opened at the first comparison. Do that before
	// another file has the path.
	os.SameFile(info, info)
	return FileIdentity{info: info}, nil
}

// Same reports whether i and other identify the same file. It also compares the modification times,
// because file systems reuse the inode of a removed file. It returns false for a zero FileIdentity.
func (i FileIdentity) Same(other FileIdentity) bool {
	return os.SameFile(i.info, other.info) && i.info.ModTime().Equal(other.info.ModTime())
}

// Listener listens on a Unix socket to which only the account of the process can
// connect. Other programs may remove or replace the socket's file.
type Listener struct {
	*net.UnixListener
	path     string
	identity FileIdentity
}

// Listen creates the socket at path and listens on it. It removes an old socket on which no
// process listens. The error matches [ErrInUse] if a process listens on the socket.
func Listen(ctx context.Context, path string) (*Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("listen on %s: the path of a Unix socket has at most %d bytes, choose a shorter directory", path, maxPath)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// By default, Close would also remove a socket that another process created at path.
	listener.SetUnlinkOnClose(false)
	l := &Listener{UnixListener: listener, path: path}
	if l.identity, err = Identify(path); err == nil {
		err = restrictAccess(path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return l, nil
}

// Intact reports whether the path still names this listener's socket. Otherwise no
// client can connect.
func (l *Listener) Intact() bool {
	now, err := Identify(l.path)
	return err == nil && now.Same(l.identity)
}

// Close stops listening and removes the socket, unless another file is at its path. A gRPC server that
// ends has closed its listener.
func (l *Listener) Close() error {
	var removeErr error
	if l.Intact() {
		removeErr = durable.Remove(l.path)
	}
	return errors.Join(removeErr, l.UnixListener.Close())
}

// removeStale removes a socket on which no process listens. Another error than a refused connection does not show
// that: a process can have too many connections to accept this one, or this process too many open files.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeSocket == 0 {
		return nil // Listening fails if the file is not a socket.
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return errors.Join(ErrInUse, conn.Close())
	case errors.Is(err, errRefused):
		return durable.Remove(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}
