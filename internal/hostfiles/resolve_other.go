//go:build !windows

package hostfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Resolve returns path with all symbolic links, junctions and mount points followed
// as the node would follow them, and short (8.3) names replaced by long ones.
// regular reports whether it is a regular file. The error matches
// [fs.ErrNotExist] if there is no file. It is safe for untrusted paths.
//
// It does not leave the root. A Windows path with a link that leads out of the drives
// becomes a Linux path.
func (r Root) Resolve(path string) (final string, regular bool, err error) {
	here, err := r.here(path)
	if err != nil {
		return "", false, err
	}
	info, err := os.Lstat(here)
	if err != nil {
		return "", false, err
	}
	relative, err := filepath.Rel(string(r), here)
	if err != nil {
		return "", false, err
	}
	final = filepath.Join("/", relative)
	if windows := winpath.Clean(relative + "/"); winpath.IsAbs(path) && winpath.IsAbs(windows) {
		final = windows
	}
	return final, info.Mode().IsRegular(), nil
}

// here returns the node's path as a path of this process, with links followed without
// leaving the root.
func (r Root) here(path string) (string, error) {
	here, err := securejoin.SecureJoin(string(r), slashes(path))
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", path, err)
	}
	return here, nil
}

// local returns the node's path as a path of this process, without links.
func (r Root) local(path string) string { return filepath.Join(string(r), slashes(path)) }

func slashes(path string) string {
	if winpath.IsAbs(path) {
		return strings.ReplaceAll(winpath.Clean(path), `\`, "/")
	}
	return path
}
