// Package hostfiles reads the node's files: it resolves links in paths, describes device nodes, and
// finds the files that match a pattern.
package hostfiles

import (
	"bytes"
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

// SameContent reports whether two regular files, which [Root.Resolve] has returned, have the same content. Large
// files are considered different.
func (r Root) SameContent(a, b string) (bool, error) {
	var contents [2][]byte
	for i, path := range []string{r.localPath(a), r.localPath(b)} {
		info, err := os.Stat(path)
		if err != nil || info.Size() > maxCompared {
			return false, err
		}
		if contents[i], err = os.ReadFile(path); err != nil {
			return false, err
		}
	}
	return bytes.Equal(contents[0], contents[1]), nil
}
