// Package shimfile names, tests, installs and removes the file of the runtime shim, and keeps the record
// of a bypass. All containers of the node start with the shim, so a new file is tested before it
// replaces the old one.
package shimfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// RuntimeName is the name of a runtime from which containerd derives [BaseName].
const RuntimeName = "io.containerd.directx.v1"

// BaseName is the shim's file name without the extension that Windows needs.
const BaseName = "containerd-shim-directx-v1"

// FileName returns the shim's file name on this system.
func FileName() string {
	if runtime.GOOS == "windows" {
		return BaseName + ".exe"
	}
	return BaseName
}

// IsShim reports whether a containerd runtime_path names the shim, in any
// directory and for any operating system.
func IsShim(runtimePath string) bool {
	base := strings.ToLower(runtimePath[strings.LastIndexAny(runtimePath, `/\`)+1:])
	return strings.TrimSuffix(base, ".exe") == BaseName
}

// workDirPrefix returns the prefix of the temporary directories in which the shim at path is
// installed. They are beside the shim, because a file can be renamed only within its volume and may
// not be allowed to run elsewhere.
func workDirPrefix(path string) string { return filepath.Base(path) + ".install-" }

// Install copies the file source to the shim at path, and reports whether the shim has changed. If
// the new shim fails its self-test, the old one stays and the error matches [ErrSelfTest].
func Install(ctx context.Context, source, path string) (changed bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("install shim %s: %w", path, err)
		}
	}()
	data, err := os.ReadFile(source)
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	workDir, err := os.MkdirTemp(filepath.Dir(path), workDirPrefix(path))
	if err != nil {
		return false, err
	}
	// An error is ignored, because the old shim, which rename moved there, may still run.
	defer func() { _ = os.RemoveAll(workDir) }()
	if bytes.Equal(old, data) && isExecutable(path) {
		// The file may have been copied there without a test.
		return false, SelfTest(ctx, path, workDir)
	}
	temp := filepath.Join(workDir, filepath.Base(path))
	if err := durable.Replace(temp, data, 0o755); err != nil {
		return false, err
	}
	if err := SelfTest(ctx, temp, workDir); err != nil {
		return false, err
	}
	return true, rename(temp, path)
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && (runtime.GOOS == "windows" || info.Mode().Perm()&0o111 == 0o111)
}

// Remove removes the shim at path and the temporary directories of its installations.
// It returns the paths of the removed files.
func Remove(path string) (removed []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("remove shim %s: %w", path, err)
		}
	}()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var errs []error
	for _, entry := range entries {
		name, file := entry.Name(), filepath.Join(filepath.Dir(path), entry.Name())
		if name != filepath.Base(path) && !strings.HasPrefix(name, workDirPrefix(path)) {
			continue
		}
		if err := removeAll(file); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, file)
	}
	return removed, errors.Join(errs...)
}
