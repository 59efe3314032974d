//go:build !windows

package hostfiles

import (
	"os"
	"path/filepath"
	"strings"

	"directx-nri/internal/winpath"
)

// final follows links as the node would, without leaving the root. A Windows path
// with a link that leads out of the drives becomes a Linux path.
func (r Root) final(path string) (final string, regular bool, err error) {
	here, err := r.visible(path)
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

// visible returns where this process sees the node's path, with links followed
// without leaving the root.
func (r Root) visible(path string) (string, error) {
	if !winpath.IsAbs(path) {
		return r.here(path)
	}
	// Names are case-insensitive on simulated Windows nodes too.
	spelled := "/"
	for _, name := range strings.Split(winpath.Clean(path), `\`) {
		dir, err := r.here(spelled)
		if err != nil {
			return "", err
		}
		spelled = filepath.Join(spelled, spelling(dir, name))
	}
	return r.here(spelled)
}

// spelling returns name in the case that dir has it in.
func spelling(dir, name string) string {
	if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
		return name
	}
	entries, err := os.ReadDir(dir)
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
