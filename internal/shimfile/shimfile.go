// Package shimfile looks after the runtime shim's file on a node: it is
// installed in stages and can be taken back, because a broken shim would keep
// every container of the node from starting, our own included.
//
// A new file is tried before it takes the place of the present one, and the
// present one is kept beside it until the new one has started a container.
package shimfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"directx-nri/internal/durable"
	"directx-nri/internal/shimname"
)

// Base is the shim's file name without the ending that Windows wants.
const Base = shimname.Name

// SelfTestFlag is the one argument with which the shim tries itself: all that it
// does at a start, on a made-up container, with itself as the real shim.
const SelfTestFlag = "--self-test"

// SelfTestPassed is the one line that a shim prints on its standard output when
// it works. Other programs may end well too when they are called so.
const SelfTestPassed = "self-test passed"

// ErrSelfTest tells a shim that does not work on this node.
var ErrSelfTest = errors.New("the shim's self-test failed")

const (
	// selfTestLimit bounds a self-test. It takes a fraction of a second.
	selfTestLimit = time.Minute
	// lockRetry is how often a lock is tried that somebody else has.
	lockRetry = 100 * time.Millisecond
	// busyTries and busyPause are how long a file is waited for that cannot be
	// touched because it is used: a shim ends within moments.
	busyTries = 50
	busyPause = 20 * time.Millisecond

	programPerm fs.FileMode = 0o755
)

// Name returns the shim's file name.
func Name() string { return shimname.File(runtime.GOOS) }

// Files that belong to the shim at path.
func staged(path string) string   { return sibling(path, "new") }
func previous(path string) string { return sibling(path, "previous") }
func lockFile(path string) string { return path + ".lock" }

// sibling returns path with word before the file's ending.
func sibling(path, word string) string {
	stem, ending := split(path)
	return stem + "." + word + ending
}

// split parts the ending ".exe" from path, which the shim has on Windows.
func split(path string) (stem, ending string) {
	if runtime.GOOS != "windows" {
		return path, ""
	}
	ending = filepath.Ext(path)
	return strings.TrimSuffix(path, ending), ending
}

// Install makes the file source the shim at path, and tells whether it was not
// so before. The shim that was there stays in its place when the new one fails
// its self-test, in a place of its own or in the one that it is to have; the
// error matches [ErrSelfTest] then. Of several that install at once, one does
// after the other.
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
	sweep(path)
	old, err := present(path)
	if err != nil {
		return false, err
	}
	if old != nil && bytes.Equal(old, data) && isProgram(path) {
		// It may be a file that came here in another way.
		return false, selfTest(ctx, path)
	}
	return true, swap(ctx, data, old, path)
}

// sweep removes what earlier self-tests left behind, as far as that goes.
func sweep(path string) {
	folder := filepath.Dir(path)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return // What comes next tells why.
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), SelfTestFolder) {
			_ = os.RemoveAll(filepath.Join(folder, entry.Name())) // Remove tells what cannot be removed.
		}
	}
}

// swap puts the program data in the place of the program old at path; old is nil
// when there is none.
func swap(ctx context.Context, data, old []byte, path string) (err error) {
	fresh := staged(path)
	defer func() { err = errors.Join(err, durable.Remove(fresh)) }()
	if err := writeProgram(fresh, data); err != nil {
		return err
	}
	if err := selfTest(ctx, fresh); err != nil {
		return err
	}
	if err := keepPrevious(path, old); err != nil {
		return err
	}
	if err := put(fresh, path, true); err != nil {
		return err
	}
	err = selfTest(ctx, path)
	if err == nil {
		if now, readErr := os.ReadFile(path); readErr != nil || !bytes.Equal(now, data) {
			return fmt.Errorf("%w: it failed when a container was started in the meantime, and the shim before it is back in its place: see its log", ErrSelfTest)
		}
		// A start by the old shim may have taken its copy for not needed.
		return keepPrevious(path, old)
	}
	if old == nil {
		return errors.Join(err, durable.Remove(path))
	}
	if backErr := errors.Join(keepPrevious(path, old), put(previous(path), path, true)); backErr != nil {
		return fmt.Errorf("%w; and the shim before it cannot be put back: %w", err, backErr)
	}
	return fmt.Errorf("%w; the shim before it is back in its place", err)
}

// lock has the shim at path to ourselves until unlock is called.
func lock(ctx context.Context, path string) (unlock func() error, err error) {
	l := flock.New(lockFile(path), flock.SetPermissions(0o600))
	if _, err := l.TryLockContext(ctx, lockRetry); err != nil {
		return nil, fmt.Errorf("wait for another installation to end: %w", err)
	}
	return l.Close, nil
}

// present returns the file at path, nil when there is none.
func present(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && (runtime.GOOS == "windows" || info.Mode().Perm()&0o111 == 0o111)
}

// writeProgram writes a program to path, synced and closed: it may be needed
// right after a power loss.
func writeProgram(path string, data []byte) error {
	if err := durable.Remove(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, programPerm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		// The process' umask may have taken something away.
		err = f.Chmod(programPerm)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// selfTest has the shim at path try itself.
func selfTest(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, selfTestLimit)
	defer cancel()
	for try := 0; ; try++ {
		stdout, stderr, err := runSelfTest(ctx, path)
		switch {
		// A process that was forked while the file was written has it open for
		// an instant longer.
		case errors.Is(err, syscall.ETXTBSY) && try < busyTries:
			time.Sleep(busyPause)
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %s: %w", ErrSelfTest, path, context.Cause(ctx))
		case err != nil:
			return fmt.Errorf("%w: %s: %w: %s", ErrSelfTest, path, err, excerpt(append(stdout, stderr...)))
		case string(bytes.TrimSpace(stdout)) != SelfTestPassed:
			return fmt.Errorf("%w: %s: it does not say %q but %q: is it %s?", ErrSelfTest, path, SelfTestPassed, excerpt(stdout), Base)
		default:
			return nil
		}
	}
}

func runSelfTest(ctx context.Context, path string) (stdout, stderr []byte, err error) {
	command := exec.CommandContext(ctx, path, SelfTestFlag)
	command.Env = append(os.Environ(), SelfTestPlace+"="+filepath.Dir(path))
	command.WaitDelay = time.Second
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err = command.Run()
	return out.Bytes(), errs.Bytes(), err
}

// excerpt returns the beginning of what a program said, on one line.
func excerpt(output []byte) string {
	const most = 500
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(output), "?")), " ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return text
}

// keepPrevious keeps the program old, if there is one, beside the shim at path.
// One that is kept already is older and proven, for it would not be there
// otherwise; old is not.
func keepPrevious(path string, old []byte) error {
	if old == nil {
		return nil
	}
	if _, err := os.Lstat(previous(path)); err == nil {
		return nil
	}
	// In one step, so that no half copy is ever put back.
	half := sibling(path, "copy")
	if err := writeProgram(half, old); err != nil {
		return errors.Join(err, durable.Remove(half))
	}
	return os.Rename(half, previous(path))
}

// Prove tells that the running shim, whose file is path, has started a
// container: the one before it is not needed any more. It is called at each
// start, and is best effort: a file that is left over is harmless.
func Prove(path string) {
	if _, err := os.Lstat(previous(path)); err != nil {
		return
	}
	if isLatest(path) {
		_ = os.Remove(previous(path)) // See above.
	}
}

// Restore puts the shim before the running one, whose file is path, back into
// its place, and tells whether another than the running one is there now.
func Restore(path string) (restored string, ok bool) {
	if isReplaced(path) {
		return path, true
	}
	if err := put(previous(path), path, false); err != nil {
		// Another start that fails as this one does may have been faster.
		return path, isReplaced(path)
	}
	return path, true
}

// Remove removes the shim at path and all that belongs to it, and returns the
// files that were there.
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
		// Removed while it is locked, or else somebody else may have it; but
		// Windows removes no open file.
		removeErr := durable.Remove(lockFile(path))
		err = errors.Join(err, unlock())
		if removeErr != nil {
			err = errors.Join(err, durable.Remove(lockFile(path)))
		}
	}()
	files, err := belongings(path)
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

// belongings lists what there is of the shim at path, the shim first.
func belongings(path string) ([]string, error) {
	folder := filepath.Dir(path)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	stem, ending := split(filepath.Base(path))
	var files []string
	for _, entry := range entries {
		name := entry.Name()
		word, ours := strings.CutPrefix(strings.TrimSuffix(name, ending), stem+".")
		switch {
		case name == filepath.Base(path):
			files = append([]string{path}, files...)
		case strings.HasPrefix(name, SelfTestFolder),
			ours && (word == "new" || word == "previous" || word == "copy" || strings.HasPrefix(word, "retired")):
			files = append(files, filepath.Join(folder, name))
		}
	}
	return files, nil
}

// SelfTestFolder begins the name of the folder that a self-test works in, and
// leaves behind when it is killed.
const SelfTestFolder = "directx-nri-self-test-"

// SelfTestPlace is the environment variable that tells where that folder is to
// be. The test runs programs, which the usual one for temporary files may not
// allow.
const SelfTestPlace = "DIRECTX_NRI_SELF_TEST"

// removeAll removes a file, or a folder with what is in it, and waits a little
// for a program that runs.
func removeAll(path string) error {
	var err error
	for range busyTries {
		if err = os.Remove(path); err == nil {
			return nil
		}
		if info, statErr := os.Lstat(path); statErr == nil && info.IsDir() {
			return os.RemoveAll(path)
		}
		if !isBusy(err) {
			return err
		}
		time.Sleep(busyPause)
	}
	return err
}
