package hostfiles

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/windows"
)

// Resolve returns path with all symbolic links, junctions and mount points followed, and with long
// names in place of short (8.3) ones. regular reports whether it is a regular file. The error matches
// [fs.ErrNotExist] if there is no file. Untrusted paths are safe: Windows returns the path of an open
// handle, which gives no access to the file.
// https://learn.microsoft.com/windows/win32/api/fileapi/nf-fileapi-getfinalpathnamebyhandlew
func (Root) Resolve(path string) (final string, regular bool, err error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", path, err)
	}
	handle, err := windows.CreateFile(name, 0, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE,
		nil, windows.OPEN_EXISTING, windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	if err != nil {
		return "", false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { err = errors.Join(err, windows.CloseHandle(handle)) }()
	var info windows.ByHandleFileInformation
	kind, err := windows.GetFileType(handle)
	if err == nil && kind == windows.FILE_TYPE_DISK {
		err = windows.GetFileInformationByHandle(handle, &info)
	}
	if err != nil {
		return "", false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if final, err = finalName(handle); err != nil {
		return "", false, &os.PathError{Op: "resolve", Path: path, Err: err}
	}
	const notRegular = windows.FILE_ATTRIBUTE_DIRECTORY | windows.FILE_ATTRIBUTE_DEVICE | windows.FILE_ATTRIBUTE_REPARSE_POINT
	return final, kind == windows.FILE_TYPE_DISK && info.FileAttributes&notRegular == 0, nil
}

// finalName returns the path of an open file with its drive letter, or the UNC
// path of a file on a network share.
func finalName(handle windows.Handle) (string, error) {
	// FILE_NAME_NORMALIZED and VOLUME_NAME_DOS are both 0.
	buffer := make([]uint16, windows.MAX_LONG_PATH)
	n, err := windows.GetFinalPathNameByHandle(handle, &buffer[0], uint32(len(buffer)), 0)
	switch {
	case err != nil:
		return "", err
	case n == 0 || int(n) >= len(buffer):
		return "", windows.ERROR_BUFFER_OVERFLOW
	}
	path := windows.UTF16ToString(buffer[:n])
	if localPath, ok := strings.CutPrefix(path, `\\?\`); ok && len(localPath) > 2 && localPath[1] == ':' {
		return localPath, nil
	}
	return path, nil
}

// localPath returns the path at which this process finds the node's path.
func (r Root) localPath(path string) string { return path }

// checkMounts returns nil, because hcsshim's mounts are read-only with everything below them.
func checkMounts(string) error { return nil }

// DeviceNode returns an error that matches [errors.ErrUnsupported].
func (r Root) DeviceNode(path string) (specs.LinuxDevice, error) {
	return specs.LinuxDevice{}, fmt.Errorf("device node %s: %w", path, errors.ErrUnsupported)
}
