// Package takeover hands containers that run over from our runtime shim to the
// real one, so that ours can be removed while they run.
//
// containerd calls the shim that started a container once more when that
// container's own shim process has died. It knows that program by a file in the
// container's bundle, which it reads when it starts. A bundle whose program is
// gone by then is deleted, under a container that runs.
// https://github.com/containerd/containerd/blob/v1.7.35/runtime/v2/shim_load.go
package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"directx-nri/internal/durable"
)

// binaryFile is the file of a bundle that names the shim's program, since
// containerd 1.6. In containerd 2.x there is a bootstrap.json beside it, which
// names none.
const binaryFile = "shim-binary-path"

// Bundle is a container that runs, or a sandbox.
type Bundle struct {
	// Plugin is containerd's plugin that runs it, such as
	// io.containerd.runtime.v2.task.
	Plugin string
	// Namespace and ID say which container it is.
	Namespace, ID string
	// Path is the bundle's folder.
	Path string
}

// String returns "namespace/ID".
func (b Bundle) String() string { return b.Namespace + "/" + b.ID }

// Exists tells whether containerd still has the bundle.
func (b Bundle) Exists() bool {
	_, err := os.Stat(filepath.Join(b.Path, binaryFile))
	return err == nil
}

// Find returns the bundles in containerd's state folder that were started by the
// shim at path. A state folder that is not there has none.
func Find(state, path string) ([]Bundle, error) {
	var found []Bundle
	for folder, err := range bundles(state) {
		if err != nil {
			return nil, fmt.Errorf("find the containers that were started by %s: %w", path, err)
		}
		named, err := os.ReadFile(filepath.Join(folder.Path, binaryFile))
		switch {
		// It has ended meanwhile, or was never started.
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("find the containers that were started by %s: %w", path, err)
		case isSame(string(named), path):
			found = append(found, folder)
		}
	}
	return found, nil
}

// bundles yields every folder that is where a bundle would be. containerd keeps
// them as PLUGIN/NAMESPACE/ID.
func bundles(state string) func(yield func(Bundle, error) bool) {
	return func(yield func(Bundle, error) bool) {
		plugins, err := folders(state)
		if err != nil {
			yield(Bundle{}, err)
			return
		}
		for _, plugin := range plugins {
			namespaces, err := folders(filepath.Join(state, plugin))
			if err != nil {
				yield(Bundle{}, err)
				return
			}
			for _, namespace := range namespaces {
				ids, err := folders(filepath.Join(state, plugin, namespace))
				if err != nil {
					yield(Bundle{}, err)
					return
				}
				for _, id := range ids {
					b := Bundle{Plugin: plugin, Namespace: namespace, ID: id, Path: filepath.Join(state, plugin, namespace, id)}
					if !yield(b, nil) {
						return
					}
				}
			}
		}
	}
}

// folders returns the names of the folders in path, none when it is not there.
func folders(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// isSame tells whether two paths name the same file.
func isSame(a, b string) bool {
	a, b = filepath.Clean(a), filepath.Clean(b)
	if a == b || runtime.GOOS == "windows" && strings.EqualFold(a, b) {
		return true
	}
	aInfo, aErr := os.Stat(a)
	bInfo, bErr := os.Stat(b)
	return aErr == nil && bErr == nil && os.SameFile(aInfo, bInfo)
}

// Assign writes down that the shim at path takes care of the bundles from now
// on. containerd reads that when it starts. A bundle that is gone is passed over.
func Assign(bundles []Bundle, path string) error {
	var errs []error
	for _, b := range bundles {
		if err := assign(b, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("hand container %s over to %s: %w", b, path, err))
		}
	}
	return errors.Join(errs...)
}

func assign(b Bundle, path string) error {
	file := filepath.Join(b.Path, binaryFile)
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	return durable.Replace(file, []byte(path), info.Mode().Perm())
}
