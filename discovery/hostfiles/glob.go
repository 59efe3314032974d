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

// Glob returns the sorted paths, relative to dir, of the files below dir that match pattern, a
// relative Windows path whose elements can have * and ?. Glob does not search links to directories
// that a wildcard matches.
func (r Root) Glob(dir, pattern string) ([]string, error) {
	elements := winpath.Elements(pattern)
	if !winpath.IsLocalGlob(pattern) || len(elements) == 0 {
		return nil, nil
	}
	found := []string{""}
	for i, element := range elements {
		isLast := i == len(elements)-1
		var matches []string
		for _, under := range found {
			below := filepath.FromSlash(strings.ReplaceAll(under, `\`, "/"))
			entries, err := matchingEntries(filepath.Join(r.localPath(dir), below), element)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			for _, entry := range entries {
				if entry.IsDir() != isLast {
					matches = append(matches, winpath.Join(under, entry.Name()))
				}
			}
		}
		found = matches
	}
	slices.Sort(found)
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
