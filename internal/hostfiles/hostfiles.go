// Package hostfiles answers questions about the node's files: what a path
// resolves to, which device a device node is, which files match a pattern.
package hostfiles

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"

	"directx-nri/internal/winpath"
)

// Root is the directory where the node's root directory is visible: "/" (or ""
// on Windows) for a program on the node itself, a mount point in a container. All
// paths that its methods take and return are the node's own.
//
// On Linux, a Windows path C:\dir is looked up as Root/C:/dir, for simulated
// Windows nodes.
type Root string

// Resolve returns path with all symbolic links followed as the node would follow
// them. The error matches [fs.ErrNotExist] if there is no file.
func (r Root) Resolve(path string) (string, error) {
	switch {
	case runtime.GOOS == "windows":
		return filepath.EvalSymlinks(path)
	case winpath.IsAbs(path):
		_, err := os.Stat(r.local(path))
		return winpath.Clean(path), err
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

// ResolveAll is [Root.Resolve] for each of paths. It resolves a directory once,
// and looks at each file once.
func (r Root) ResolveAll(paths []string) (resolved []string, errs []error) {
	type result struct {
		path string
		err  error
	}
	dirs := map[string]result{}
	resolved, errs = make([]string, len(paths)), make([]error, len(paths))
	for i, path := range paths {
		if runtime.GOOS != "windows" && winpath.IsAbs(path) {
			resolved[i], errs[i] = r.Resolve(path)
			continue
		}
		dir, name := filepath.Split(filepath.Clean(path))
		parent, known := dirs[dir]
		if !known {
			parent.path, parent.err = r.Resolve(dir)
			dirs[dir] = parent
		}
		if errs[i] = parent.err; errs[i] != nil {
			continue
		}
		resolved[i] = filepath.Join(parent.path, name)
		info, err := os.Lstat(filepath.Join(string(r), resolved[i]))
		switch {
		case err != nil:
			errs[i] = err
		case info.Mode()&(fs.ModeSymlink|fs.ModeIrregular) != 0:
			resolved[i], errs[i] = r.Resolve(path)
		}
	}
	return resolved, errs
}

// here returns where this process sees the node's path, with links followed
// without leaving the root.
func (r Root) here(path string) (string, error) {
	here, err := securejoin.SecureJoin(string(r), path)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", path, err)
	}
	return here, nil
}

// local returns where this process sees the node's Windows path.
func (r Root) local(path string) string {
	if runtime.GOOS == "windows" {
		return path
	}
	return filepath.Join(append([]string{string(r)}, strings.Split(winpath.Clean(path), `\`)...)...)
}
