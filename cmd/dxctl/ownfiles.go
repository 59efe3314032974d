package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"directx-nri/internal/durable"
)

const (
	// ownFilesName is the file in our state folder that tells which whole files of
	// the node we have written.
	ownFilesName = "installed-files.json"
	// ownFilesFormat is the one that we write and read.
	ownFilesFormat = 1
	// ownFilesLock is the file beside it that is locked while any of them changes.
	ownFilesLock = "installed-files.lock"
	// ownFilesRetry is how often the lock is tried that somebody else has.
	ownFilesRetry = 50 * time.Millisecond
)

// ownRecord is what we know of files that we have written. It is what makes a file
// ours: one that is another now than what we wrote is somebody else's.
type ownRecord struct {
	Format int `json:"format"`
	// Files has, by a file's path, the hash of what we have written; and while it is
	// being replaced, that of what comes too.
	Files map[string][]string `json:"files"`
}

// ownFiles writes and removes whole files of ours.
type ownFiles struct {
	state  string
	record ownRecord
}

// openOwnFiles reads what we know of our files.
func openOwnFiles(state string) (*ownFiles, error) {
	o := &ownFiles{state: state, record: ownRecord{Format: ownFilesFormat, Files: map[string][]string{}}}
	text, exists, err := readFile(o.path())
	if err != nil || !exists {
		return o, err
	}
	// What it names is overwritten and removed.
	if err = durable.CheckFile(o.path()); err == nil {
		err = json.Unmarshal(text, &o.record)
	}
	if err == nil && o.record.Format != ownFilesFormat {
		err = fmt.Errorf("format %d is not known to this program", o.record.Format)
	}
	if err != nil {
		return nil, fmt.Errorf("read which files were installed, %s: %w; without that file, what it names counts as somebody else's: move both away to begin anew", o.path(), err)
	}
	if o.record.Files == nil {
		o.record.Files = map[string][]string{}
	}
	return o, nil
}

// lockOwnFiles has what is installed to ourselves until unlock is called. Two pods
// can be at it at once: the old one of a node and the new one, of another pool.
func lockOwnFiles(ctx context.Context, state string) (unlock func() error, err error) {
	if err := durable.MakePrivate(state); err != nil {
		return nil, err
	}
	path := filepath.Join(state, ownFilesLock)
	lock := flock.New(path, flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, ownFilesRetry); err != nil {
		return nil, fmt.Errorf("wait for another program that installs files, with %s: %w", path, err)
	}
	return func() error {
		_, err := os.Lstat(filepath.Join(state, ownFilesName))
		if !errors.Is(err, fs.ErrNotExist) {
			return lock.Close()
		}
		// Nothing of ours is left. Removed while it is locked, or else somebody else
		// may have it; but Windows removes no open file.
		removeErr := durable.Remove(path)
		err = lock.Close()
		if removeErr != nil {
			err = errors.Join(err, durable.Remove(path))
		}
		return err
	}, nil
}

func (o *ownFiles) path() string { return filepath.Join(o.state, ownFilesName) }

// paths returns the files that we have written, sorted.
func (o *ownFiles) paths() []string { return slices.Sorted(maps.Keys(o.record.Files)) }

func (o *ownFiles) knows(path string) bool { return len(o.record.Files[path]) > 0 }

// ownState is what a file is to us.
type ownState int

const (
	ownMissing ownState = iota
	ownOurs             // as we have written it
	ownChanged          // we have written it, and somebody has changed it since
	ownForeign          // somebody else has written it
)

// look returns what the file at path is to us, and its text.
func (o *ownFiles) look(path string) (state ownState, text []byte, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ownMissing, nil, nil
	case err != nil:
		return ownForeign, nil, err
	case info.Mode().IsRegular():
		if text, err = readOwn(path); err != nil {
			return ownForeign, nil, err
		}
		// 'runtime install' has no state folder, and what it writes tells by itself.
		if slices.Contains(o.record.Files[path], hash(text)) || isOurs(text) {
			return ownOurs, text, nil
		}
	}
	if o.knows(path) {
		return ownChanged, text, nil
	}
	return ownForeign, text, nil
}

// isClosed tells whether the programs that read the file at path trust it, as far as
// we can have them do so: somebody may have opened it, or its folder, to others.
func isClosed(path string) bool {
	return durable.CheckPrivate(filepath.Dir(path)) == nil && durable.CheckFile(path) == nil
}

// mostOwn in bytes is more than any file has that we write.
const mostOwn = 2 << 20

// readOwn reads a file that others may replace meanwhile.
func readOwn(path string) ([]byte, error) {
	text, err := durable.Read(path, mostOwn+1)
	if err == nil && len(text) > mostOwn {
		err = fmt.Errorf("read %s: it is larger than %d bytes", path, mostOwn)
	}
	return text, err
}

// errJustWritten tells that a file has become somebody else's since it was decided
// what becomes of it.
var errJustWritten = errors.New("somebody has just written it, and it is left alone")

// put writes a file that is missing or ours. At every moment the file is as we
// know it, before or after.
func (o *ownFiles) put(path string, text []byte) error {
	state, before, err := o.look(path)
	switch {
	case err != nil:
		return err
	case state == ownChanged || state == ownForeign:
		return errJustWritten
	}
	last := hash(text)
	o.record.Files[path] = []string{last}
	if before != nil && hash(before) != last {
		o.record.Files[path] = []string{hash(before), last}
	}
	if err := o.save(); err != nil {
		return err
	}
	if err := putPrivate(path, text); err != nil || before == nil {
		return err
	}
	o.record.Files[path] = []string{last}
	return o.save()
}

// putPrivate writes a file that the system's own account alone may read, in a
// folder of which that is true too: it may name a program that runs as the system.
func putPrivate(path string, text []byte) error {
	if err := durable.MakePrivate(filepath.Dir(path)); err != nil {
		return err
	}
	return durable.Replace(path, text, 0o600)
}

// remove removes a file that is ours.
func (o *ownFiles) remove(path string) error {
	if err := durable.Remove(path); err != nil {
		return err
	}
	return o.forget(path)
}

// forget has a file be ours no longer.
func (o *ownFiles) forget(path string) error {
	if !o.knows(path) {
		return nil
	}
	delete(o.record.Files, path)
	return o.save()
}

// save writes what we know, or removes it when that is nothing.
func (o *ownFiles) save() error {
	if len(o.record.Files) == 0 {
		return durable.Remove(o.path())
	}
	if err := durable.MakePrivate(o.state); err != nil {
		return err
	}
	content, err := json.MarshalIndent(o.record, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", o.path(), err)
	}
	return durable.Replace(o.path(), append(content, '\n'), 0o600)
}
