package hostfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"directx-nri/internal/winpath"
)

// Glob returns the paths, relative to folder and sorted, of the files below folder
// that fit pattern: a relative Windows path whose elements may have * and ? in
// them, of which neither stands for a separator. It returns at most limit. What is
// not there is no error. A link to a folder is not looked into by a wildcard.
func (r Root) Glob(folder, pattern string, limit int) ([]string, error) {
	if !winpath.IsAbs(folder) || !winpath.IsLocalGlob(pattern) {
		return nil, nil
	}
	found, err := glob(r.local(folder), "", winpath.Elements(pattern), limit)
	slices.Sort(found)
	return found, err
}

// local returns where the node's Windows path is seen by this process.
func (r Root) local(path string) string {
	if runtime.GOOS == "windows" {
		return path
	}
	return filepath.Join(append([]string{string(r)}, strings.Split(winpath.Clean(path), `\`)...)...)
}

// glob looks below folder/under for what fits the elements of a pattern.
func glob(folder, under string, elements []string, limit int) ([]string, error) {
	if len(elements) == 0 || limit <= 0 {
		return nil, nil
	}
	here := filepath.Join(folder, filepath.FromSlash(strings.ReplaceAll(under, `\`, "/")))
	entries, err := candidates(here, elements[0])
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		path := winpath.Join(under, entry.Name())
		if len(elements) > 1 {
			if entry.IsDir() {
				below, err := glob(folder, path, elements[1:], limit-len(found))
				if err != nil {
					return nil, err
				}
				found = append(found, below...)
			}
		} else if !entry.IsDir() {
			found = append(found, path)
		}
		if len(found) >= limit {
			return found[:limit], nil
		}
	}
	return found, nil
}

// candidates returns the entries of folder that fit one element of a pattern. An
// element without wildcards is looked up and not listed.
func candidates(folder, element string) ([]fs.DirEntry, error) {
	if !winpath.HasWildcard(element) {
		info, err := os.Stat(filepath.Join(folder, element))
		if err != nil {
			return nil, err
		}
		return []fs.DirEntry{named{fs.FileInfoToDirEntry(info), element}}, nil
	}
	entries, err := os.ReadDir(folder)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !winpath.Match(element, e.Name()) }), err
}

// named is an entry under the name that it was asked for by: on Windows that may
// differ in its case.
type named struct {
	fs.DirEntry
	name string
}

func (n named) Name() string { return n.name }
