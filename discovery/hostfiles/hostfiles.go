// Package hostfiles reads the node's files: it resolves links in paths, describes device nodes, and
// finds the files that match a pattern.
package hostfiles

import (
	"bytes"
	"fmt"
	"os"
)

// Root is where the node's root directory is mounted: "" (or "/" on Linux) for a program on the
// node itself. All paths that its methods take and return are the node's own.
type Root string

// maxCompared is the largest size in bytes of files that are compared, because a container's start
// waits for it.
const maxCompared = 16 << 20

// MountSource returns path with all links followed (see [Root.Resolve]). A directory with mounts below it is an
// error, because they would be writable in a container.
func (r Root) MountSource(path string) (final string, err error) {
	final, isRegular, err := r.Resolve(path)
	if err != nil || isRegular {
		return final, err
	}
	return final, checkMounts(r.localPath(final))
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
