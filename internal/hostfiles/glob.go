package hostfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Glob returns the sorted paths, relative to dir, of at most limit files below
// dir that match pattern, a relative Windows path whose elements can have * and ?.
// Wildcards do not match links to directories.
func (r Root) Glob(dir, pattern string, limit int) ([]string, error) {
	if !winpath.IsLocalGlob(pattern) {
		return nil, nil
	}
	found, err := glob(r.localPath(dir), "", winpath.Elements(pattern), limit)
	slices.Sort(found)
	return found, err
}

// glob returns the files below dir/under that match the elements of a pattern.
func glob(dir, under string, elements []string, limit int) ([]string, error) {
	if len(elements) == 0 || limit <= 0 {
		return nil, nil
	}
	directory := filepath.Join(dir, filepath.FromSlash(strings.ReplaceAll(under, `\`, "/")))
	entries, err := matchingEntries(directory, elements[0])
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		path := winpath.Join(under, entry.Name())
		switch {
		case len(elements) == 1 && !entry.IsDir():
			found = append(found, path)
		case len(elements) > 1 && entry.IsDir():
			below, err := glob(dir, path, elements[1:], limit-len(found))
			if err != nil {
				return nil, err
			}
			found = append(found, below...)
		}
		if len(found) >= limit {
			return found[:limit], nil
		}
	}
	return found, nil
}

// matchingEntries returns the entries of dir that match one element of a pattern. If the
// element has no wildcard, it does not list dir.
func matchingEntries(dir, element string) ([]fs.DirEntry, error) {
	if !winpath.HasWildcard(element) {
		info, err := os.Stat(filepath.Join(dir, element))
		if err != nil {
			return nil, err
		}
		return []fs.DirEntry{fs.FileInfoToDirEntry(info)}, nil
	}
	entries, err := os.ReadDir(dir)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !winpath.Match(element, e.Name()) }), err
}
