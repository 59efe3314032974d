package noderuntime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// binaryFile is the file of a bundle with the path of the shim that started the container.
// When the container's shim process has died, containerd calls that program to clean up.
// At its start, containerd reads the file and deletes the bundle if the program no longer
// exists, even if the container still runs.
// https://github.com/containerd/containerd/blob/v1.7.35/runtime/v2/shim_load.go
const binaryFile = "shim-binary-path"

// bundle is the bundle of a running container or sandbox.
type bundle struct {
	name string // namespace/ID
	path string
}

// findBundles returns the bundles in containerd's state directory that were
// started by the shim at path. The state directory need not exist.
func findBundles(state, path string) ([]bundle, error) {
	var found []bundle
	err := filepath.WalkDir(state, func(dir string, entry fs.DirEntry, err error) error {
		relative, _ := filepath.Rel(state, dir)
		names := strings.Split(relative, string(filepath.Separator)) // of a bundle: PLUGIN/NAMESPACE/ID
		switch {
		case errors.Is(err, fs.ErrNotExist): // The container has ended.
			return nil
		case err != nil:
			return err
		case !entry.IsDir() || len(names) < 3:
			return nil
		}
		program, err := os.ReadFile(filepath.Join(dir, binaryFile))
		switch {
		case errors.Is(err, fs.ErrNotExist): // It was never started.
		case err != nil:
			return err
		case isSameFile(string(program), path):
			found = append(found, bundle{names[1] + "/" + names[2], dir})
		}
		return fs.SkipDir
	})
	if err != nil {
		return nil, fmt.Errorf("find containers that were started by %s: %w", path, err)
	}
	return found, nil
}

// isSameFile reports whether two paths name the same file.
func isSameFile(a, b string) bool {
	a, b = filepath.Clean(a), filepath.Clean(b)
	if a == b || runtime.GOOS == "windows" && strings.EqualFold(a, b) {
		return true
	}
	aInfo, aErr := os.Stat(a)
	bInfo, bErr := os.Stat(b)
	return aErr == nil && bErr == nil && os.SameFile(aInfo, bInfo)
}

// setShim makes the shim at path responsible for bundles, so that the shim that started
// them can be removed. It has an effect after the next start of containerd. Bundles that no
// longer exist are ignored.
func setShim(bundles []bundle, path string) error {
	var errs []error
	for _, b := range bundles {
		file := filepath.Join(b.path, binaryFile)
		info, err := os.Stat(file)
		if err == nil {
			err = durable.Replace(file, []byte(path), info.Mode().Perm())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("hand container %s over to %s: %w", b.name, path, err))
		}
	}
	return errors.Join(errs...)
}
