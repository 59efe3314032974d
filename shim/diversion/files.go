package diversion

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// Prefixes of names, in the directory of the real shim unless noted. All but asidePrefix are of files that are ours.
const (
	stagedPrefix = "new-"             // a directory with a program that is being tested
	oursPrefix   = "ours-"            // our shim, which has been replaced
	asidePrefix  = "real-"            // a real shim, which another program has updated
	tempPrefix   = "directx-nri-tmp-" // beside our shim: a copy of the real shim
)

// fileOps are the operations on files that change what containerd can run, so that tests can interrupt
// them and fail as Windows does.
type fileOps struct {
	// copy copies a file and its access rights, and syncs the copy. It fails if to exists.
	copy func(from, to string) error
	// link creates another name for a file. It fails if to exists.
	link func(from, to string) error
	// rename fails if to exists. It waits a second for programs that have the file open.
	rename func(from, to string) error
	// replace is rename, but replaces to. Windows does not replace a running program unless, with some
	// versions, it has another name.
	replace func(from, to string) error
	// remove removes a file or a directory with its content. Windows does not remove a running program.
	remove func(path string) error
	// renameAtBoot makes the system rename a file at its next boot if to does not exist then, and cancel
	// undoes that.
	renameAtBoot func(from, to string) (cancel func() error, err error)
	// isInUse reports whether the error of an operation means that a program runs or is open.
	isInUse func(error) bool
}

// exchange places the program at staged, and moves the program that was there to kept. If it fails,
// nothing has changed.
func (d *Diversion) exchange(staged, kept, prefix string) error {
	if err := d.files.link(d.place(), kept); err != nil { // The file system may have no hard links.
		return d.swap(staged, kept)
	}
	err := d.files.replace(staged, d.place())
	if d.files.isInUse(err) {
		away := d.unique(prefix)
		if err = d.swap(staged, away); err == nil {
			_ = d.files.remove(away) // It is a second name of kept; cleanUp tries again.
			return nil
		}
	}
	if err != nil {
		return errors.Join(err, d.files.remove(kept))
	}
	return nil
}

// swap is exchange by two renames. Between them, containerd finds no shim: a container would fail to
// start, and a containerd that starts would forget all its containers. So nothing happens between them, and
// if the power fails, Windows does the second one when it boots.
func (d *Diversion) swap(staged, away string) error {
	cancel, err := d.files.renameAtBoot(staged, d.place())
	if err != nil {
		return err
	}
	if err := d.files.rename(d.place(), away); err != nil {
		return errors.Join(err, cancel())
	}
	if err := d.files.rename(staged, d.place()); err != nil {
		back := d.files.rename(away, d.place())
		if back != nil && !errors.Is(back, fs.ErrExist) {
			return errors.Join(err, back) // The rename at boot is left to repair it.
		}
		return errors.Join(err, back, cancel())
	}
	return cancel()
}

// stage copies the program newFile to the directory from which it can be renamed into its place, and tests it there.
func (d *Diversion) stage(ctx context.Context, newFile string) (staged string, err error) {
	dir, err := os.MkdirTemp(d.workDir(), stagedPrefix)
	if err != nil {
		return "", err
	}
	staged = filepath.Join(dir, paths.Runhcs)
	data, err := os.ReadFile(newFile)
	if err != nil {
		return "", err
	}
	// Only administrators can write to workDir. A renamed file keeps its access rights.
	if err := durable.Replace(staged, data, 0o755); err != nil {
		return "", err
	}
	return staged, d.selfTest(ctx, staged, dir)
}

// companions are the files and directories that the runhcs shim looks for beside itself.
// https://github.com/microsoft/hcsshim/blob/v0.15.0/internal/uvm/create_lcow.go
func companions() []string { return []string{"LinuxBootFiles", "WindowsBootFiles", "device-util.exe"} }

// linkCompanions gives the files that the real shim looks for beside itself a second name in its new
// directory. The Host Compute Service does not use files through symbolic links.
func (d *Diversion) linkCompanions() error {
	for _, name := range companions() {
		from, to := filepath.Join(d.dir, name), filepath.Join(d.workDir(), name)
		if !durable.Exists(from) {
			if err := os.RemoveAll(to); err != nil {
				return err
			}
			continue
		}
		err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			linked := to + strings.TrimPrefix(path, from)
			if entry.IsDir() {
				return os.MkdirAll(linked, 0o755)
			}
			return d.linkAgain(path, linked)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// linkAgain links from to to, unless it is the same file already.
func (d *Diversion) linkAgain(from, to string) error {
	source, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if linked, err := os.Lstat(to); err == nil {
		if os.SameFile(source, linked) {
			return nil
		}
		if err := os.Remove(to); err != nil {
			return err
		}
	}
	return d.files.link(from, to)
}

// discardReal deletes the moved real shim. It waits for the starts in which our shim runs or is about to run it:
// as long as our shim, which was replaced, runs, its file cannot be deleted.
func (d *Diversion) discardReal(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, discardTimeout)
	defer cancel()
	for err := d.cleanUp(); err != nil; err = d.cleanUp() {
		if !d.files.isInUse(err) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
	_ = d.files.remove(d.real()) // Containers may run from it.
}

// cleanUp deletes what earlier calls have left, unless programs run from it. It returns an error if a replaced shim
// of ours is left.
func (d *Diversion) cleanUp() (err error) {
	remove := func(dir, prefix string) (err error) {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), prefix) {
				err = errors.Join(err, d.files.remove(filepath.Join(dir, entry.Name())))
			}
		}
		return err
	}
	_ = remove(d.dir, tempPrefix)
	_ = remove(d.workDir(), stagedPrefix)
	_ = remove(d.workDir(), asidePrefix)
	if !durable.Exists(d.real()) {
		for _, name := range companions() {
			_ = d.files.remove(filepath.Join(d.workDir(), name))
		}
	}
	return remove(d.workDir(), oursPrefix)
}

// unique returns a path in the directory of the real shim for a program that is about to be deleted.
func (d *Diversion) unique(prefix string) string {
	return filepath.Join(d.workDir(), prefix+strconv.FormatInt(time.Now().UnixNano(), 36)+".exe")
}

// copyFile copies a program with its access rights and times.
func copyFile(from, to string) (err error) {
	source, err := durable.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	err = errors.Join(err, copyAccess(from, target), target.Sync(), target.Close())
	return errors.Join(err, os.Chtimes(to, info.ModTime(), info.ModTime()))
}
