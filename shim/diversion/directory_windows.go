package diversion

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/win32"
)

// Find returns the directory from which containerd runs the runhcs shim. The error matches
// [ErrUnknownDirectory] or [ErrSeveralDirectories] if the caller must be given the directory.
func Find() (string, error) {
	s := system{self: uint32(os.Getpid()), searchPath: filepath.SplitList(os.Getenv("PATH")), exists: durable.Exists}
	processes, err := win32.Processes()
	if err != nil {
		return "", err
	}
	for _, p := range processes {
		found := process{id: p.ID, parent: p.Parent, name: p.Name}
		if strings.EqualFold(p.Name, paths.Runhcs) || strings.EqualFold(p.Name, containerdName) {
			found.path, _ = win32.ProcessPath(p.ID) // It may have ended.
		}
		s.processes = append(s.processes, found)
	}
	line, err := win32.ServiceCommand(containerdService)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if program := programOf(line); strings.EqualFold(filepath.Base(program), containerdName) {
		s.containerd = program
	}
	return directory(s)
}
