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

// version is containerd's configuration file with our change of it.
type version struct {
	savedFile `json:"file"` // symbolic links in its path are resolved
	Change    *Change       `json:"change,omitempty"` // nil if there is none
}

// openFile reads a configuration file and our change of it.
func openFile(path, stateDir string) (version, error) {
	resolved, err := filepath.EvalSymlinks(path)
	switch {
	case err == nil:
		path = resolved
	case durable.Exists(path):
		// A new file would replace the link.
		return version{}, fmt.Errorf("%w: %s is a symbolic link; use its target instead, and in a pod mount the target's directory", err, path)
	}
	if path, err = filepath.Abs(path); err != nil {
		return version{}, err
	}
	saved, err := saveFile(path)
	if err != nil {
		return version{}, err
	}
	r, err := readRecord(stateDir)
	if err != nil {
		return version{}, err
	}
	if r.Change != nil && r.Config != path {
		return version{}, fmt.Errorf("the record %s is that of %s: use another --state-dir for %s", recordPath(stateDir), r.Config, path)
	}
	return version{saved, r.Change}, nil
}

func (v version) backupPath() string { return v.Path + backupSuffix }

func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// configure replaces v by the result r. What is needed to undo it is written before.
func (t *Restarter) configure(v version, r containerdconfig.Result) error {
	if err := os.MkdirAll(filepath.Dir(v.Path), 0o755); err != nil {
		return fmt.Errorf("create the directory of %s: %w", v.Path, err)
	}
	next := Change{Config: v.Path, Created: !v.Exists, Original: hash(v.Text)}
	if v.hasChange() {
		next = *v.Change
		if next.Written != hash(v.Text) {
			next.Original = ""
		}
	} else if v.Exists {
		if err := durable.ReplaceLike(v.Path, v.backupPath(), v.Text, v.Perm); err != nil {
			return err
		}
		t.at("copied")
	}
	next.Written = hash(r.Text)
	next.Edits = append(next.Edits, r.Edits...)
	return t.write(version{savedFile{v.Path, true, r.Text, v.Perm}, &next})
}

// write writes v, after the record of its change.
func (t *Restarter) write(v version) error {
	if v.Change != nil {
		change := *v.Change
		change.At = time.Now()
		if err := updateRecord(t.StateDir, func(r *record) { r.Change = &change }); err != nil {
			return err
		}
		t.at("recorded")
	}
	err := v.restore()
	t.at("written")
	return err
}

// forget removes the copy of v and the record of our change.
func (t *Restarter) forget(v version) error {
	return errors.Join(durable.Remove(v.backupPath()), updateRecord(t.StateDir, func(r *record) { r.Change = nil }))
}

// hasChange reports whether the file has our change. It does not if it was never written, or
// if another program replaced it.
func (v version) hasChange() bool {
	if v.Change == nil || v.Change.Original == hash(v.Text) {
		return false
	}
	undone, _, err := containerdconfig.Undo(v.Text, v.Change.Edits)
	return err != nil || !bytes.Equal(undone, v.Text)
}

// reverted returns the file without our change, and notes about what may differ from the
// original. It changes nothing.
func (v version) reverted(node containerdconfig.Node) (result savedFile, notes []string, err error) {
	result = v.savedFile
	switch c := v.Change; {
	case !v.Exists:
		return result, nil, nil
	case c == nil:
		result.Text, notes, err = containerdconfig.Remove(v.Text, node)
		return result, notes, locate(v.Path, err)
	case c.Original != "" && c.Written == hash(v.Text):
		if c.Created {
			return savedFile{Path: v.Path}, nil, nil
		}
		if backup, err := saveFile(v.backupPath()); err == nil && hash(backup.Text) == c.Original {
			result.Text = backup.Text
			return result, nil, nil
		}
	}
	result.Text, notes, err = containerdconfig.Undo(v.Text, v.Change.Edits)
	result.Exists = !v.Change.Created || len(bytes.TrimSpace(result.Text)) > 0
	return result, notes, locate(v.Path, err)
}
