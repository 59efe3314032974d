package diversion

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

var (
	// ErrUnknownDirectory means that nothing on this system shows from which directory containerd runs the runhcs shim.
	ErrUnknownDirectory = errors.New("the directory of " + paths.Runhcs + " is unknown: neither it nor containerd runs")
	// ErrSeveralDirectories means that this system has the runhcs shim in several directories, and which one
	// containerd uses is unknown.
	ErrSeveralDirectories = errors.New("several directories have " + paths.Runhcs)
)

const containerdName = "containerd.exe"

// process is a running process.
type process struct {
	id, parent uint32
	name       string // the file name with which its program was started
	path       string // of its program, "" if it is unknown
}

// system is what shows the directory of the runhcs shim.
type system struct {
	self       uint32 // the ID of this process
	processes  []process
	searchPath []string // directories in which containerd looks for shims, in addition to its own
	exists     func(path string) bool
}

// directory returns the directory of the runhcs shim: that of the one which started the container of this
// process; otherwise that of the running ones; otherwise the one where containerd finds it. left are the directories
// of shims that an earlier version of containerd has started: each version of RKE2 has a directory of its own.
func directory(s system) (dir string, left []string, err error) {
	for _, dirs := range [][]string{s.ownShim(), s.runningShims(), s.besideContainerd()} {
		var current []string
		for _, dir := range dirs {
			if s.isLeft(dir) {
				left = appendDir(left, dir)
			} else {
				current = append(current, dir)
			}
		}
		switch len(current) {
		case 0:
		case 1:
			return current[0], left, nil
		default:
			return "", nil, fmt.Errorf("%w: %s", ErrSeveralDirectories, strings.Join(current, ", "))
		}
	}
	return "", nil, ErrUnknownDirectory
}

// isLeft reports whether dir has a containerd that does not run, while one of another directory runs.
func (s system) isLeft(dir string) bool {
	running := s.containerds()
	isIn := func(other string) bool { return winpath.Equal(other, dir) }
	return len(running) > 0 && !slices.ContainsFunc(running, isIn) && s.exists(winpath.Join(dir, containerdName))
}

// containerds returns the directories of the containerds that run.
func (s system) containerds() (dirs []string) {
	for _, p := range s.processes {
		if strings.EqualFold(p.name, containerdName) && p.path != "" {
			dirs = append(dirs, winpath.Dir(p.path))
		}
	}
	return dirs
}

// ownShim returns the directory of the nearest ancestor of this process that is a runhcs shim: it starts the
// processes of HostProcess containers.
func (s system) ownShim() []string {
	at := s.self
	for range s.processes { // IDs that are used again could make a circle.
		i := slices.IndexFunc(s.processes, func(p process) bool { return p.id == at })
		if i < 0 {
			return nil
		}
		if p := s.processes[i]; p.isRunhcs() {
			return []string{p.placeDir()}
		}
		at = s.processes[i].parent
	}
	return nil
}

func (s system) runningShims() []string {
	var dirs []string
	for _, p := range s.processes {
		if p.isRunhcs() {
			dirs = appendDir(dirs, p.placeDir())
		}
	}
	return dirs
}

// besideContainerd returns the directories that have the runhcs shim, of those in which containerd looks for it.
func (s system) besideContainerd() []string {
	var dirs []string
	candidates := s.containerds()
	if len(candidates) > 0 {
		candidates = append(candidates, s.searchPath...)
	}
	for _, dir := range candidates {
		if s.exists(winpath.Join(dir, paths.Runhcs)) || s.exists(winpath.Join(dir, paths.RealShimDir, paths.Runhcs)) {
			dirs = appendDir(dirs, dir)
		}
	}
	return dirs
}

func (p process) isRunhcs() bool {
	return strings.EqualFold(p.name, paths.Runhcs) && p.path != ""
}

// placeDir returns the directory from which containerd runs the shim of the process, which can be the moved one, or one
// that is tested, in a directory below.
func (p process) placeDir() string {
	dir := winpath.Dir(p.path)
	for _, work := range []string{dir, winpath.Dir(dir)} {
		if strings.EqualFold(winpath.Base(work), paths.RealShimDir) {
			return winpath.Dir(work)
		}
	}
	return dir
}

// appendDir appends dir to dirs unless Windows considers it equal to one of them.
func appendDir(dirs []string, dir string) []string {
	if slices.ContainsFunc(dirs, func(other string) bool { return winpath.Equal(other, dir) }) {
		return dirs
	}
	return append(dirs, dir)
}
