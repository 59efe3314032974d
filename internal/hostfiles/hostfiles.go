// Package hostfiles looks at the node's files for the spec edits: what a path
// resolves to, and which device a device node stands for.
package hostfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"

	"directx-nri/internal/winpath"
)

// Root is the folder under which the node's root directory is seen: "/" (or ""
// on Windows) for a program that runs on the node itself, the mount of it for
// one that runs in a container. Paths that go in and come out are the node's
// own.
//
// On Linux a Windows path is looked up below Root/C: and so on, for simulated
// Windows nodes.
type Root string

// Resolve returns path with every symbolic link followed, as the node would
// follow them. Its error matches [fs.ErrNotExist] when there is nothing there.
func (r Root) Resolve(path string) (string, error) {
	if runtime.GOOS == "windows" {
		return filepath.EvalSymlinks(path)
	}
	if winpath.IsAbs(path) {
		elements := strings.Split(winpath.Clean(path), `\`)
		if _, err := os.Stat(filepath.Join(append([]string{string(r)}, elements...)...)); err != nil {
			return "", err
		}
		return winpath.Clean(path), nil
	}
	here, err := r.here(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(here); err != nil {
		return "", err
	}
	relative, err := filepath.Rel(string(r), here)
	if err != nil {
		return "", err
	}
	return filepath.Join("/", relative), nil
}

// here returns where the node's path is seen by this process, links followed
// without ever leaving the root.
func (r Root) here(path string) (string, error) {
	here, err := securejoin.SecureJoin(string(r), path)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", path, err)
	}
	return here, nil
}
