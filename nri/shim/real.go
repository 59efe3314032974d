package shim

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

var errNoShim = errors.New("the real runtime shim is not to be had")

// realShim returns the path of the shim that we stand in front of: as
// configured, or the usual one of this system, beside us or on PATH.
func (s *shim) realShim() (string, error) {
	name := s.configuration().Shim.Runtime
	if name == "" {
		name = usualShim
	}
	path, err := FindRuntime(s.call.Self, name)
	if err != nil {
		return "", fmt.Errorf("directx-nri: no container can be started: %w; install it, or set shim.runtime in %s", err, s.call.ConfigPath)
	}
	return path, nil
}

// UsualRuntime is the file name of the real shim where nothing else is
// configured.
const UsualRuntime = usualShim

// FindRuntime returns the path of the real shim that name stands for, for our
// shim at the path self: an absolute path, or a file name that is looked for
// beside self and on PATH. It never returns our shim itself.
func FindRuntime(self, name string) (string, error) {
	if filepath.IsAbs(name) {
		return name, notSelf(self, name)
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if notSelf(self, beside) == nil {
		return beside, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %s is neither in %s nor on PATH", errNoShim, name, filepath.Dir(self))
	}
	return path, notSelf(self, path)
}

// notSelf returns an error when path is not there, or is the file self, which
// would call itself for ever.
func notSelf(self, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoShim, err)
	}
	if own, err := os.Stat(self); err == nil && os.SameFile(info, own) {
		return fmt.Errorf("%w: %s is directx-nri's own", errNoShim, path)
	}
	return nil
}
