package diversion

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// Prefixes of names, in the directory of the real shim unless noted.
const (
	stagedPrefix = "new-"             // a directory with a program that is about to be placed, or the program
	oursPrefix   = "ours-"            // our shim, which has been replaced
	asidePrefix  = "real-"            // a real shim that another program has updated, or another name of a file
	tempPrefix   = "directx-nri-tmp-" // beside our shim: a copy of the real shim
)

// fileOps are the operations on files that change what containerd can run, so that tests can interrupt
// them and fail as Windows does.
type fileOps struct {
	// copy copies a file with its access rights and times, and syncs the copy. It fails if to exists.
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

func systemOps() fileOps {
	return fileOps{
		copy: copyFile, link: os.Link, rename: durable.Move, replace: durable.Rename, remove: os.RemoveAll,
		renameAtBoot: renameAtBoot, isInUse: isInUse,
	}
}

// exchange places the program at staged, and moves the program that was there to kept.
func (d *Diversion) exchange(staged, kept string) error {
	if err := d.files.link(d.place(), kept); err != nil { // The file system may have no hard links.
		return d.swap(staged, kept)
	}
	err := d.files.replace(staged, d.place())
	if d.files.isInUse(err) { // Now kept has a second name, which cleanUp deletes.
		err = d.swap(staged, d.unique(asidePrefix))
	}
	if err != nil && durable.Exists(d.place()) {
		err = errors.Join(err, d.files.remove(kept))
	}
	return err
}

// swap is exchange by two renames. Between them, containerd finds no shim: a container would fail to
// start, and a containerd that starts would forget all its containers. So nothing happens between them, and
// if the power fails, Windows does the second one when it boots. A virus scanner can have a new file open, so
// that its rename waits. So it is renamed once before.
func (d *Diversion) swap(staged, away string) error {
	ready := staged + ".ready"
	if err := d.files.rename(staged, ready); err != nil {
		return err
	}
	staged = ready
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
	_ = cancel() // At boot, there is nothing left to rename.
	return nil
}

// stage copies the program newFile to the directory from which it can be renamed into its place, and tests it there.
// A renamed file keeps its access rights.
func (d *Diversion) stage(ctx context.Context, newFile string) (staged string, err error) {
	data, err := os.ReadFile(newFile)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(d.workDir(), stagedPrefix)
	if err != nil {
		return "", err
	}
	staged = filepath.Join(dir, paths.Runhcs)
	if err := durable.Replace(staged, data, 0o755); err != nil {
		return "", err
	}
	// The shim trusts its state only in a directory that others cannot replace, and containerd's may be another.
	tests := filepath.Join(filepath.Dir(d.lockFile), "self-test")
	if err := access.MakePrivate(tests); err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tests) }() // Also what an interrupted call has left.
	return staged, d.selfTest(ctx, staged, tests)
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
			_ = d.files.remove(to) // It may be in use.
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
			info, err := os.Stat(path)
			if before, beforeErr := os.Stat(linked); err == nil && beforeErr == nil {
				if os.SameFile(info, before) {
					return nil // It may be in use.
				}
				err = d.files.remove(linked)
			}
			return errors.Join(err, d.files.link(path, linked))
		})
		if err != nil {
			return err
		}
	}
	return nil
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
// of ours is left. While no shim is in its place, a rename at boot may need a file.
func (d *Diversion) cleanUp() (err error) {
	if !durable.Exists(d.place()) {
		return nil
	}
	entries, _ := os.ReadDir(d.dir)
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), tempPrefix) {
			_ = d.files.remove(filepath.Join(d.dir, entry.Name()))
		}
	}
	entries, _ = os.ReadDir(d.workDir())
	hasReal := durable.Exists(d.real())
	for _, entry := range entries {
		name, path := entry.Name(), filepath.Join(d.workDir(), entry.Name())
		switch {
		case strings.HasPrefix(name, oursPrefix):
			err = errors.Join(err, d.files.remove(path))
		case strings.HasPrefix(name, stagedPrefix) || strings.HasPrefix(name, asidePrefix) ||
			!hasReal && slices.Contains(companions(), name):
			_ = d.files.remove(path)
		}
	}
	return err
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
