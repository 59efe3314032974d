package hostfiles

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// DeviceNode describes the device node at the node's path.
func (r Root) DeviceNode(path string) (specs.LinuxDevice, error) {
	here, err := r.here(path)
	if err != nil {
		return specs.LinuxDevice{}, err
	}
	info, err := os.Lstat(here)
	if err != nil {
		return specs.LinuxDevice{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeDevice == 0 {
		return specs.LinuxDevice{}, fmt.Errorf("%s is not a device node", path)
	}
	kind := "b"
	if info.Mode()&fs.ModeCharDevice != 0 {
		kind = "c"
	}
	mode := info.Mode().Perm()
	return specs.LinuxDevice{
		Path: path, Type: kind,
		Major: int64(unix.Major(stat.Rdev)), Minor: int64(unix.Minor(stat.Rdev)),
		FileMode: &mode, UID: &stat.Uid, GID: &stat.Gid,
	}, nil
}
