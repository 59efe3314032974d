package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/directx-nri/directx-nri/cmd/dxctl/statefile"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/tomledit"
)

const recordFormat = 1

// ChangeRecord is the content of the file that records dxctl's changes of containerd's
// configuration. It is saved before each step, so that the next command continues one that was
// killed. Only the methods below change it. Its edits are in one of these states:
//
//   - none, in a new record and after RemoveEdits
//   - pending, from AddEdits on: containerd has not started with the last edits. If it does not, they
//     are undone (RemovePending).
//   - loaded, from EndRestart or ConfirmLoaded on: a later failure does not undo them.
//
// In each state, a restart can be due, from BeginRestart until EndRestart: a command that is killed
// meanwhile, or whose restart fails, leaves it to the next command. The last restart can have
// failed, from FailRestart until the next AddEdits or EndRestart.
type ChangeRecord struct {
	Format int `json:"format"`
	// Config is the configuration file, "" if there are no edits, Given its path as in [ConfigFile].
	// Created reports whether dxctl created it.
	Config  string          `json:"config,omitempty"`
	Given   string          `json:"given,omitempty"`
	Created bool            `json:"created,omitempty"`
	Edits   []tomledit.Edit `json:"edits,omitempty"`
	Pending int             `json:"pending,omitempty"` // number of the last edits
	// RestartDue reports whether a command has begun a restart of containerd, and has not finished it.
	RestartDue bool `json:"restartDue,omitempty"`
	// Failure is nil if the last restart succeeded.
	Failure *RestartError `json:"failure,omitempty"`
}

// AddEdits adds pending edits, before they are written to the file.
func (r *ChangeRecord) AddEdits(file ConfigFile, edits []tomledit.Edit) {
	// The record can have edits that the file does not have: another program replaced the file, or
	// a run was killed before it wrote the file.
	if text, _, err := containerdconfig.Undo(file.Text, r.Edits); err == nil && bytes.Equal(text, file.Text) {
		r.RemoveEdits()
	}
	if len(r.Edits) == 0 {
		r.Created = !file.Exists
	}
	r.Config, r.Given = file.Path, file.Given
	r.Edits, r.Pending, r.Failure = append(r.Edits, edits...), r.Pending+len(edits), nil
}

// BeginRestart makes a restart due, before containerd's files are changed for it.
func (r *ChangeRecord) BeginRestart() { r.RestartDue = true }

// ConfirmLoaded makes all edits loaded, because the running containerd has them. A restart that is
// due stays due: it can be for another change.
func (r *ChangeRecord) ConfirmLoaded() { r.Pending = 0 }

// EndRestart makes all edits loaded, because containerd has restarted.
func (r *ChangeRecord) EndRestart() { r.Pending, r.RestartDue, r.Failure = 0, false, nil }

// FailRestart records why containerd did not restart, for [RestartError.CheckRetry].
func (r *ChangeRecord) FailRestart(attempt string, cause error) {
	r.Failure = &RestartError{attempt, time.Now(), errlog.Text(cause)}
}

// ClearFailure allows the same attempt again, because the node has changed.
func (r *ChangeRecord) ClearFailure() { r.Failure = nil }

// PendingEdits returns the edits that are undone if containerd does not start with them.
func (r *ChangeRecord) PendingEdits() []tomledit.Edit { return r.Edits[len(r.Edits)-r.Pending:] }

// RemovePending removes the pending edits, which were undone.
func (r *ChangeRecord) RemovePending() {
	r.Edits, r.Pending = r.Edits[:len(r.Edits)-r.Pending], 0
	if len(r.Edits) == 0 {
		r.RemoveEdits()
	}
}

// RemoveEdits removes all edits, which were undone, and the failure. A restart that is due stays due.
func (r *ChangeRecord) RemoveEdits() {
	*r = ChangeRecord{Format: recordFormat, RestartDue: r.RestartDue}
}

// RestartError is a change with which containerd did not restart.
type RestartError struct {
	// Attempt is a hash of everything that can affect the result of the restart.
	Attempt string    `json:"attempt"`
	At      time.Time `json:"at"`
	Cause   string    `json:"error"`
}

func (f *RestartError) Error() string {
	return fmt.Sprintf("containerd did not restart with this configuration at %s: %s", f.At.UTC().Format(time.RFC3339), f.Cause)
}

// retryPause is the time before the same configuration is tried again. The kubelet restarts a
// failed init container every few minutes, and each attempt restarts the node's containerd twice.
const retryPause = time.Hour

// CheckRetry returns an error if an attempt has failed within [retryPause].
func (f *RestartError) CheckRetry(attempt string, now time.Time) error {
	// The clock may have been set back.
	if f == nil || f.Attempt != attempt || now.Before(f.At) || now.Sub(f.At) >= retryPause {
		return nil
	}
	return fmt.Errorf("%w; it is tried again after %v, or with another --restart-timeout", f, retryPause)
}

// RecordPath returns the path of the record in a state directory.
func RecordPath(stateDir string) string { return filepath.Join(stateDir, paths.RuntimeRecordFile) }

// ReadRecord returns the record of a state directory, which is empty if there is no file.
func ReadRecord(stateDir string) (ChangeRecord, error) {
	var r ChangeRecord
	err := statefile.Read(RecordPath(stateDir), &r)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ChangeRecord{Format: recordFormat}, nil
	case err != nil:
		return ChangeRecord{}, err
	case r.Format != recordFormat:
		return ChangeRecord{}, fmt.Errorf("the record %s has the unknown format %d", RecordPath(stateDir), r.Format)
	}
	r.Pending = min(max(r.Pending, 0), len(r.Edits)) // An administrator may have edited the file.
	return r, nil
}

// Save writes the record. It removes the file of an empty record, and then the state directory if
// that is empty.
func (r ChangeRecord) Save(stateDir string) error {
	if reflect.DeepEqual(r, ChangeRecord{Format: recordFormat}) {
		err := durable.Remove(RecordPath(stateDir))
		_ = os.Remove(stateDir) // Fails unless it is empty.
		return err
	}
	return statefile.Write(RecordPath(stateDir), r)
}

// IsConfigured reports whether a command has changed containerd's configuration. It returns true
// if the record cannot be read.
func IsConfigured(stateDir string) bool {
	r, err := ReadRecord(stateDir)
	return err != nil || r.Config != "" || r.RestartDue
}

// ErrRestartDue means that a restart of containerd is due.
var ErrRestartDue = errors.New("an earlier command did not finish its restart of containerd")
