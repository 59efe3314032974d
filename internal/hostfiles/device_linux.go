package hostfiles

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
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

// checkMounts returns an error if there are mounts below dir.
// https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
func checkMounts(dir string) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	below := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(strings.TrimSuffix(dir, "/") + "/")
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] != "/" && strings.HasPrefix(fields[4], below) {
			return fmt.Errorf("the directory cannot be mounted read-only because there is a mount at %s below it: list the directories beside and below that one by one", strings.TrimPrefix(fields[4], below))
		}
	}
	return nil
}
