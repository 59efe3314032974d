package hostfiles

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Resolve returns path with all symbolic links followed as the node follows them, so the result does
// not leave the root. regular reports whether it is a regular file. The error matches [fs.ErrNotExist]
// if there is no file. Untrusted paths are safe.
func (r Root) Resolve(path string) (final string, regular bool, err error) {
	file, info, err := r.Lookup(path)
	if err != nil {
		return "", false, err
	}
	return filepath.Join("/", strings.TrimPrefix(file, filepath.Clean(string(r)))), info.Mode().IsRegular(), nil
}

// Lookup follows the links of the node's path without leaving the root. It returns the path at which this
// process finds the file, which has no links. The error names the target of a link that has none.
func (r Root) Lookup(path string) (file string, info fs.FileInfo, err error) {
	if file, err = securejoin.SecureJoin(cmp.Or(string(r), "/"), path); err != nil {
		return "", nil, fmt.Errorf("resolve %s: %w", path, err)
	}
	info, err = os.Lstat(file)
	return file, info, err
}

// localPath returns the path at which this process finds the node's path, which must have no links.
func (r Root) localPath(path string) string { return filepath.Join(string(r), path) }

// DeviceNode describes the device node at the node's path.
func (r Root) DeviceNode(path string) (specs.LinuxDevice, error) {
	_, info, err := r.Lookup(path)
	if err != nil {
		return specs.LinuxDevice{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeCharDevice == 0 {
		return specs.LinuxDevice{}, fmt.Errorf("%s is not a character device", path)
	}
	return specs.LinuxDevice{
		Path: path, Type: "c", Major: int64(unix.Major(stat.Rdev)), Minor: int64(unix.Minor(stat.Rdev)),
		FileMode: new(info.Mode().Perm()), UID: &stat.Uid, GID: &stat.Gid,
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
			return fmt.Errorf("the directory cannot be mounted read-only because there is a mount at %s below it: list the directories beside and below that one by one",
				strings.TrimPrefix(fields[4], below))
		}
	}
	return nil
}
