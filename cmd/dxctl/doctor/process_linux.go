package doctor

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// containerdProcess tells what containerd that listens on socket was started
// with. Another user's process tells root alone.
func containerdProcess(ctx context.Context, socket string) process {
	connection, err := new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(strings.TrimPrefix(socket, "unix:"), "//"))
	if err != nil {
		return process{}
	}
	defer connection.Close()
	raw, err := connection.(*net.UnixConn).SyscallConn()
	if err != nil {
		return process{}
	}
	var peer *unix.Ucred
	if err := raw.Control(func(fd uintptr) { peer, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || peer == nil {
		return process{}
	}
	folder := filepath.Join("/proc", strconv.Itoa(int(peer.Pid)))
	program, err := os.Readlink(filepath.Join(folder, "exe"))
	// Where systemd made the socket, it is the peer.
	if err != nil || !strings.HasPrefix(filepath.Base(program), "containerd") {
		return process{}
	}
	p := process{folder: filepath.Dir(program)}
	environment, err := os.ReadFile(filepath.Join(folder, "environ"))
	if err != nil {
		return p
	}
	for variable := range strings.SplitSeq(string(environment), "\x00") {
		if path, ok := strings.CutPrefix(variable, "PATH="); ok {
			p.path = path
		}
	}
	return p
}
