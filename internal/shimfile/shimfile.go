// Package shimfile manages the runtime shim's executable on a node: its name,
// its installation and removal, and the handoff of running containers to
// another shim.
//
// Each container of the node starts through the shim, so a new file is tested
// beside the present one before it replaces it.
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
	"time"

	"github.com/gofrs/flock"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// RuntimeName is the name of a runtime from which containerd derives [Base].
const RuntimeName = "io.containerd.directx.v1"

// Base is the shim's file name without the extension that Windows needs.
const Base = "containerd-shim-directx-v1"

const (
	// lockRetry is the interval between attempts to lock the installation.
	lockRetry = 100 * time.Millisecond
	// busyTries and busyPause bound the wait for a file that a shim has open; a
	// shim runs for milliseconds.
	busyTries = 50
	busyPause = 20 * time.Millisecond

	programPerm fs.FileMode = 0o755
)

// FileName returns the shim's file name on the given GOOS.
func FileName(goos string) string {
	if goos == "windows" {
		return Base + ".exe"
	}
	return Base
}

// Name returns the shim's file name on this system.
func Name() string { return FileName(runtime.GOOS) }

// IsShim reports whether a containerd runtime_path names the shim, in any
// directory and for any operating system.
func IsShim(runtimePath string) bool {
	base := strings.ToLower(runtimePath[strings.LastIndexAny(runtimePath, `/\`)+1:])
	return strings.TrimSuffix(base, ".exe") == Base
}

func staged(path string) string   { return sibling(path, "new") }
func lockFile(path string) string { return path + ".lock" }

// sibling returns path with word before its extension.
func sibling(path, word string) string {
	stem, ext := splitExt(path)
	return stem + "." + word + ext
}

func splitExt(path string) (stem, ext string) {
	if runtime.GOOS != "windows" {
		return path, ""
	}
	ext = filepath.Ext(path)
	return strings.TrimSuffix(path, ext), ext
}

// Install installs the file source as the shim at path and reports whether that
// changed the file. When the new shim fails its self-test, the present one stays
// and the error matches [ErrSelfTest].
// Concurrent installations wait for each other.
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
	if err := os.MkdirAll(filepath.Dir(path), programPerm); err != nil {
		return false, err
	}
	unlock, err := lock(ctx, path)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	removeLeftovers(path)
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if bytes.Equal(old, data) && isExecutable(path) {
		// It may have been copied here without a test.
		return false, selfTest(ctx, path)
	}
	temp := staged(path)
	defer func() { err = errors.Join(err, durable.Remove(temp)) }()
	if err := writeProgram(temp, data); err != nil {
		return false, err
	}
	if err := selfTest(ctx, temp); err != nil {
		return false, err
	}
	return true, rename(temp, path)
}

// writeProgram writes a program to path, synced and closed.
func writeProgram(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, programPerm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	// The umask may have removed bits.
	return errors.Join(err, f.Chmod(programPerm), f.Sync(), f.Close())
}

// removeLeftovers removes what earlier installations and self-tests left beside
// the shim, as far as possible.
func removeLeftovers(path string) {
	files, err := shimFiles(path)
	if err != nil {
		return // The next step reports it.
	}
	for _, file := range files {
		if file != path {
			_ = os.RemoveAll(file) // A retired shim may still run. Remove reports what cannot be removed.
		}
	}
}

// lock locks the installation at path until unlock is called.
func lock(ctx context.Context, path string) (unlock func() error, err error) {
	l := flock.New(lockFile(path), flock.SetPermissions(0o600))
	if _, err := l.TryLockContext(ctx, lockRetry); err != nil {
		return nil, fmt.Errorf("wait for another installation: %w", err)
	}
	return l.Close, nil
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && (runtime.GOOS == "windows" || info.Mode().Perm()&0o111 == 0o111)
}

// Remove removes the shim at path with all files that belong to it, and returns
// the removed files.
func Remove(ctx context.Context, path string) (removed []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("remove shim %s: %w", path, err)
		}
	}()
	if _, err := os.Stat(filepath.Dir(path)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	unlock, err := lock(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() {
		// Removed while locked, or another process may have locked it; but Windows
		// does not remove an open file.
		removeErr := durable.Remove(lockFile(path))
		err = errors.Join(err, unlock())
		if removeErr != nil {
			err = errors.Join(err, durable.Remove(lockFile(path)))
		}
	}()
	files, err := shimFiles(path)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, file := range files {
		if err := removeAll(file); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, file)
	}
	return removed, errors.Join(errs...)
}

// shimFiles returns the files of the shim at path, the shim first.
func shimFiles(path string) ([]string, error) {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	stem, ext := splitExt(filepath.Base(path))
	var files []string
	for _, entry := range entries {
		name := entry.Name()
		word, ours := strings.CutPrefix(strings.TrimSuffix(name, ext), stem+".")
		switch {
		case name == filepath.Base(path):
			files = append([]string{path}, files...)
		case strings.HasPrefix(name, SelfTestDirPrefix), ours && (word == "new" || strings.HasPrefix(word, retired)):
			files = append(files, filepath.Join(dir, name))
		}
	}
	return files, nil
}

// removeAll removes a file or a directory and waits for a program that runs.
func removeAll(path string) error {
	return retry(isBusy, func() error {
		err := os.Remove(path)
		if info, statErr := os.Lstat(path); statErr == nil && info.IsDir() {
			return os.RemoveAll(path)
		}
		return err
	})
}

// retry calls do until it succeeds, fails with another error than isBusy accepts, or a shim
// has had time to exit.
func retry(isBusy func(error) bool, do func() error) error {
	err := do()
	for try := 0; try < busyTries && isBusy(err); try++ {
		time.Sleep(busyPause)
		err = do()
	}
	return err
}

// retired begins the word in the name of a shim that was moved aside because it
// was running; see rename on Windows.
const retired = "retired-"
