package containerd

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/directx-nri/directx-nri/cmd/dxctl/doctor"
	"github.com/directx-nri/directx-nri/cmd/dxctl/statefile"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/durable"
)

const (
	// backupSuffix is the suffix of the copy of the original file.
	backupSuffix  = ".directx-nri.bak"
	journalName   = "runtime-configure.json"
	journalFormat = 1

	newFilePerm fs.FileMode = 0o644
)

// journal is the record of our changes to a configuration file.
type journal struct {
	Format int `json:"format"`
	// Config is the file.
	Config string `json:"config"`
	// Created reports whether the file did not exist before.
	Created bool `json:"created,omitempty"`
	// Original is the hash of the original file, "" if others changed it between our
	// changes, so that the copy is out of date.
	Original string `json:"original,omitempty"`
	// Written is the hash of what we wrote last.
	Written string                  `json:"written"`
	Edits   []containerdconfig.Edit `json:"edits"`
}

// IsConfigured reports whether containerd has our changes, also from an earlier version.
func IsConfigured(stateDir string) bool { return durable.Exists(filepath.Join(stateDir, journalName)) }

// managedFile is a configuration file with a journal.
type managedFile struct {
	path    string // symbolic links are resolved
	state   string
	text    []byte
	exists  bool
	perm    fs.FileMode
	journal *journal // nil if there is none
	// step is called after each step of a change.
	step func(name string)
}

// openManaged reads a configuration file and its journal.
func openManaged(path, state string) (*managedFile, error) {
	m := &managedFile{path: path, state: state, step: func(string) {}}
	resolved, err := filepath.EvalSymlinks(path)
	switch {
	case err == nil:
		m.path = resolved
	case durable.Exists(path):
		// A new file would replace the link.
		return nil, fmt.Errorf("%w: %s is a symbolic link; use its target instead, and in a pod mount the target's directory", err, path)
	}
	saved, err := saveFile(m.path)
	if err != nil {
		return nil, err
	}
	m.text, m.exists, m.perm = saved.Text, saved.Exists, saved.Perm
	if m.path, err = filepath.Abs(m.path); err != nil {
		return nil, err
	}
	m.journal, err = statefile.Read[journal](m.recordPath())
	switch {
	case err != nil:
		return nil, err
	case m.journal != nil && m.journal.Format != journalFormat:
		return nil, fmt.Errorf("the record %s has the unknown format %d", m.recordPath(), m.journal.Format)
	case m.journal != nil && m.journal.Config != m.path:
		return nil, fmt.Errorf("the record %s is that of %s: use another --state-dir for %s", m.recordPath(), m.journal.Config, m.path)
	}
	return m, nil
}

func (m *managedFile) recordPath() string { return filepath.Join(m.state, journalName) }
func (m *managedFile) backupPath() string { return m.path + backupSuffix }

func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// write writes a new text. What is needed to undo it is written before.
func (m *managedFile) write(r containerdconfig.Result) error {
	if err := os.MkdirAll(filepath.Dir(m.path), 0o755); err != nil {
		return fmt.Errorf("create the directory of %s: %w", m.path, err)
	}
	next := journal{Format: journalFormat, Config: m.path, Created: !m.exists, Original: hash(m.text)}
	if m.applied() {
		next = *m.journal
		if next.Written != hash(m.text) {
			next.Original = ""
		}
	} else if m.exists {
		if err := durable.ReplaceLike(m.path, m.backupPath(), m.text, m.perm); err != nil {
			return err
		}
		m.step("copied")
	}
	next.Written = hash(r.Text)
	next.Edits = append(next.Edits, r.Edits...)
	if err := statefile.Write(m.recordPath(), next); err != nil {
		return err
	}
	m.step("journaled")
	if err := durable.ReplaceLike(m.path, m.path, r.Text, m.perm); err != nil {
		return err
	}
	m.step("written")
	return nil
}

// applied reports whether the file has our changes. It does not if it was never
// written, or if another program replaced it.
func (m *managedFile) applied() bool {
	if m.journal == nil || m.journal.Original == hash(m.text) {
		return false
	}
	undone, _, err := containerdconfig.Undo(m.text, m.journal.Edits)
	return err != nil || !bytes.Equal(undone, m.text)
}

// reverted is the file without our changes.
type reverted struct {
	text   []byte
	exists bool
	notes  []string
}

// revert returns the file without our changes, and changes nothing.
func (m *managedFile) revert(node containerdconfig.Node) (reverted, error) {
	same := reverted{text: m.text, exists: m.exists}
	if !m.exists {
		return same, nil
	}
	if m.journal == nil {
		text, notes, err := containerdconfig.Remove(m.text, node)
		if err != nil {
			return same, locate(m.path, err)
		}
		return reverted{text, true, notes}, nil
	}
	if m.journal.Original != "" && m.journal.Written == hash(m.text) {
		if m.journal.Created {
			return reverted{}, nil
		}
		if backup, _, err := readFile(m.backupPath()); err == nil && hash(backup) == m.journal.Original {
			return reverted{text: backup, exists: true}, nil
		}
	}
	text, notes, err := containerdconfig.Undo(m.text, m.journal.Edits)
	if err != nil {
		return same, locate(m.path, err)
	}
	return reverted{text, !m.journal.Created || len(bytes.TrimSpace(text)) > 0, notes}, nil
}

// store writes the reverted file.
func (m *managedFile) store(r reverted) error {
	if r.exists && bytes.Equal(r.text, m.text) {
		return nil
	}
	if m.journal != nil { // Its time is that of the last change: see isOutdated.
		if err := statefile.Write(m.recordPath(), *m.journal); err != nil {
			return err
		}
	}
	if !r.exists {
		return durable.Remove(m.path)
	}
	return durable.ReplaceLike(m.path, m.path, r.text, m.perm)
}

// forget removes the journal and the copy, and the state directory if it is empty.
func (m *managedFile) forget() error {
	if m.journal == nil {
		return nil
	}
	return errors.Join(durable.Remove(m.backupPath()), statefile.Remove(m.recordPath()))
}

// Unfinished returns the remains of interrupted commands.
func Unfinished(configFile, state string) (list []doctor.File) {
	add := func(kind doctor.FileKind, path string, err error) {
		list = append(list, doctor.File{Kind: kind, Path: path, Err: err})
	}
	journal := filepath.Join(state, journalName)
	managed, err := openManaged(configFile, state)
	switch {
	case err != nil && durable.Exists(journal):
		add(doctor.Journal, journal, err)
	case err == nil && managed.journal == nil && durable.Exists(managed.backupPath()):
		add(doctor.Journal, managed.backupPath(), errors.New("containerd's configuration has a backup without a record of the changes"))
	}
	if last := lastAttempt(state); last != nil {
		add(doctor.FailedRestart, attemptPath(state), errors.New(last.String()))
	}
	pendingPath := filepath.Join(state, pendingRestartName)
	p, err := statefile.Read[pendingRestart](pendingPath)
	if p != nil {
		err = errors.New("an earlier command did not finish its restart of containerd")
	}
	add(doctor.PendingRestart, pendingPath, err)
	return list
}
