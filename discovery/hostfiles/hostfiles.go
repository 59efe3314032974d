// Package hostfiles reads the node's files: it resolves links in paths, describes device nodes, and
// finds the files that match a pattern.
package hostfiles

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Root is where the node's root directory is mounted: "" (or "/" on Linux) for a program on the
// node itself. All paths that its methods take and return are the node's own.
type Root string

// maxCompared is the largest size in bytes of files that are compared, because a container's start
// waits for it.
const maxCompared = 16 << 20

// ResolveAll returns the result of [Root.Resolve] for each of paths, with one difference: a directory
// with mounts below it is an error, because they would be writable in a container. It resolves each
// parent directory only once, and a path itself only if it is a link.
func (r Root) ResolveAll(paths []string) (resolved []string, errs []error) {
	type result struct {
		path string
		err  error
	}
	dirs := map[string]result{}
	resolved, errs = make([]string, len(paths)), make([]error, len(paths))
	for i, path := range paths {
		dir := filepath.Dir(path)
		parent, known := dirs[dir]
		if !known {
			parent.path, _, parent.err = r.Resolve(dir)
			dirs[dir] = parent
		}
		if errs[i] = parent.err; errs[i] != nil {
			continue
		}
		resolved[i] = filepath.Join(parent.path, filepath.Base(path))
		info, err := os.Lstat(r.localPath(resolved[i]))
		if err == nil && info.Mode()&(fs.ModeSymlink|fs.ModeIrregular) != 0 {
			if resolved[i], _, err = r.Resolve(path); err == nil {
				info, err = os.Lstat(r.localPath(resolved[i]))
			}
		}
		if err == nil && info.IsDir() {
			err = checkMounts(r.localPath(resolved[i]))
		}
		errs[i] = err
	}
	return resolved, errs
}

// SameContent reports whether two regular files have the same content. Large files are
// considered different.
func (r Root) SameContent(a, b string) (bool, error) {
	var contents [2][]byte
	for i, path := range []string{a, b} {
		final, regular, err := r.Resolve(path)
		if err == nil && !regular { // A FIFO would block.
			err = fmt.Errorf("%s: not a regular file", path)
		}
		if err != nil {
			return false, err
		}
		info, err := os.Stat(r.localPath(final))
		if err != nil || info.Size() > maxCompared {
			return false, err
		}
		if contents[i], err = os.ReadFile(r.localPath(final)); err != nil {
			return false, err
		}
	}
	return bytes.Equal(contents[0], contents[1]), nil
}
