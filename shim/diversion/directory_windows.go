package diversion

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/win32"
)

// find returns the directory from which containerd runs the runhcs shim.
func find() (string, error) {
	s, err := readSystem()
	if err != nil {
		return "", err
	}
	return directory(s)
}

func findContainerd() string {
	s, err := readSystem()
	if dirs := s.besideContainerd(); err == nil && len(dirs) == 1 {
		return dirs[0]
	}
	return "" // The next call tries again.
}

func readSystem() (system, error) {
	processes, err := win32.Processes()
	if err != nil {
		return system{}, err
	}
	s := system{self: uint32(os.Getpid()), searchPath: filepath.SplitList(os.Getenv("PATH")), exists: durable.Exists}
	for _, p := range processes {
		found := process{id: p.ID, parent: p.Parent, name: p.Name}
		if strings.EqualFold(p.Name, paths.Runhcs) || strings.EqualFold(p.Name, containerdName) {
			found.path, _ = win32.ProcessPath(p.ID) // It may have ended.
		}
		s.processes = append(s.processes, found)
	}
	return s, nil
}
