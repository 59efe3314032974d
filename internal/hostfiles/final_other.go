//go:build !windows

package hostfiles

import (
	"os"
	"path/filepath"
	"strings"

	"directx-nri/internal/winpath"
)

// final follows links as the node would, and never out of the root. A Windows
// path that a link leads away from the drives comes back as the path of Linux that
// it led to.
func (r Root) final(path string) (final string, regular bool, err error) {
	here, err := r.seen(path)
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
	if winpath.IsAbs(path) {
		if windows := strings.ReplaceAll(relative, "/", `\`); winpath.IsAbs(windows) {
			final = windows
		}
	}
	return final, info.Mode().IsRegular(), nil
}

// seen returns where the node's path is seen by this process, links followed
// without ever leaving the root.
func (r Root) seen(path string) (string, error) {
	if !winpath.IsAbs(path) {
		return r.here(path)
	}
	// A Windows node does not tell names apart by their case, and so neither does
	// one that is simulated.
	spelled := "/"
	for _, name := range strings.Split(winpath.Clean(path), `\`) {
		folder, err := r.here(spelled)
		if err != nil {
			return "", err
		}
		spelled = filepath.Join(spelled, spelling(folder, name))
	}
	return r.here(spelled)
}

// spelling returns name as folder has it, and as it is when folder does not.
func spelling(folder, name string) string {
	if _, err := os.Lstat(filepath.Join(folder, name)); err == nil {
		return name
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return name
	}
	for _, entry := range entries {
		if winpath.Equal(entry.Name(), name) {
			return entry.Name()
		}
	}
	return name
}
