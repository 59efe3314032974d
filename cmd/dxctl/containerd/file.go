package containerd

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/durable"
)

// backupSuffix is the suffix of the copy of the original file.
const backupSuffix = ".directx-nri.bak"

// file is containerd's configuration file with our change of it.
type file struct {
	savedFile // symbolic links in its path are resolved
	stateDir  string
	change    *Change // nil if there is none
	// step is called after each step of a change.
	step func(name string)
}

// openFile reads a configuration file and our change of it.
func openFile(path, stateDir string) (*file, error) {
	resolved, err := filepath.EvalSymlinks(path)
	switch {
	case err == nil:
		path = resolved
	case durable.Exists(path):
		// A new file would replace the link.
		return nil, fmt.Errorf("%w: %s is a symbolic link; use its target instead, and in a pod mount the target's directory", err, path)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	saved, err := saveFile(path)
	if err != nil {
		return nil, err
	}
	r, err := readRecord(stateDir)
	if err != nil {
		return nil, err
	}
	if r.Change != nil && r.Config != path {
		return nil, fmt.Errorf("the record %s is that of %s: use another --state-dir for %s", recordPath(stateDir), r.Config, path)
	}
	return &file{saved, stateDir, r.Change, func(string) {}}, nil
}

func (f *file) backupPath() string { return f.Path + backupSuffix }

func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// write writes a new text. What is needed to undo it is written before.
func (f *file) write(r containerdconfig.Result) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return fmt.Errorf("create the directory of %s: %w", f.Path, err)
	}
	next := Change{Config: f.Path, Created: !f.Exists, Original: hash(f.Text)}
	if f.hasChange() {
		next = *f.change
		if next.Written != hash(f.Text) {
			next.Original = ""
		}
	} else if f.Exists {
		if err := durable.ReplaceLike(f.Path, f.backupPath(), f.Text, f.Perm); err != nil {
			return err
		}
		f.step("copied")
	}
	next.Written = hash(r.Text)
	next.Edits = append(next.Edits, r.Edits...)
	if err := f.recordChange(&next); err != nil {
		return err
	}
	f.step("recorded")
	if err := durable.ReplaceLike(f.Path, f.Path, r.Text, f.Perm); err != nil {
		return err
	}
	f.step("written")
	return nil
}

// recordChange records a change that is made now.
func (f *file) recordChange(c *Change) error {
	c.At = time.Now()
	return updateRecord(f.stateDir, func(r *record) { r.Change = c })
}

// hasChange reports whether the file has our change. It does not if it was never written, or
// if another program replaced it.
func (f *file) hasChange() bool {
	if f.change == nil || f.change.Original == hash(f.Text) {
		return false
	}
	undone, _, err := containerdconfig.Undo(f.Text, f.change.Edits)
	return err != nil || !bytes.Equal(undone, f.Text)
}

// reverted returns the file without our change, and notes about what may differ from the
// original. It changes nothing.
func (f *file) reverted(node containerdconfig.Node) (result savedFile, notes []string, err error) {
	result = f.savedFile
	switch c := f.change; {
	case !f.Exists:
		return result, nil, nil
	case c == nil:
		result.Text, notes, err = containerdconfig.Remove(f.Text, node)
		return result, notes, locate(f.Path, err)
	case c.Original != "" && c.Written == hash(f.Text):
		if c.Created {
			return savedFile{Path: f.Path}, nil, nil
		}
		if backup, err := saveFile(f.backupPath()); err == nil && hash(backup.Text) == c.Original {
			result.Text = backup.Text
			return result, nil, nil
		}
	}
	result.Text, notes, err = containerdconfig.Undo(f.Text, f.change.Edits)
	result.Exists = !f.change.Created || len(bytes.TrimSpace(result.Text)) > 0
	return result, notes, locate(f.Path, err)
}

// restore writes the reverted file.
func (f *file) restore(reverted savedFile) error {
	if f.change != nil {
		if err := f.recordChange(f.change); err != nil {
			return err
		}
	}
	return reverted.restore()
}

// forget removes the record of our change and the copy, and the state directory if it is
// empty.
func (f *file) forget() error {
	if f.change == nil {
		return nil
	}
	return errors.Join(durable.Remove(f.backupPath()), updateRecord(f.stateDir, func(r *record) { r.Change = nil }))
}
