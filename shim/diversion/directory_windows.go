package diversion

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/win32"
)

// find returns the directory from which containerd runs the runhcs shim, and those that it has left.
func find() (dir string, left []string, err error) {
	processes, err := win32.Processes()
	if err != nil {
		return "", nil, err
	}
	s := system{self: uint32(os.Getpid()), searchPath: filepath.SplitList(os.Getenv("PATH")), exists: durable.Exists}
	for _, p := range processes {
		found := process{id: p.ID, parent: p.Parent, name: p.Name}
		if strings.EqualFold(p.Name, paths.Runhcs) || strings.EqualFold(p.Name, containerdName) {
			found.path, _ = win32.ProcessPath(p.ID) // It may have ended.
		}
		s.processes = append(s.processes, found)
	}
	return directory(s)
}
