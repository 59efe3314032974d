package noderuntime

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"time"

	"github.com/directx-nri/directx-nri/cmd/dxctl/statefile"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/remedy"
	"github.com/directx-nri/directx-nri/internal/tomledit"
)

const recordFormat = 1

// changeRecord is the content of the file that records dxctl's changes of containerd's
// configuration. It is saved before each step, so that the next command continues one that was
// killed. Only the methods below change it. Its edits are in one of these states:
//
//   - none, in a new record and after removeEdits
//   - pending, from addEdits on: containerd has not started with the last edits. If it does not, they
//     are undone (removePending).
//   - loaded, from endRestart or confirmLoaded on: a later failure does not undo them.
//
// In each state, a restart can be due, from beginRestart until endRestart: a command that is killed
// meanwhile, or whose restart fails, leaves it to the next command. The last restart can have
// failed, from failRestart until the next addEdits or endRestart.
type changeRecord struct {
	Format int `json:"format"`
	// Config is the configuration file, "" if there are no edits. Created reports whether dxctl
	// created it.
	Config  string          `json:"config,omitempty"`
	Created bool            `json:"created,omitempty"`
	Edits   []tomledit.Edit `json:"edits,omitempty"`
	Pending int             `json:"pending,omitempty"` // number of the last edits
	// RestartDue reports whether a command has begun a restart of containerd, and has not finished it.
	RestartDue bool `json:"restartDue,omitempty"`
	// Failure is nil if the last restart succeeded.
	Failure *failure `json:"failure,omitempty"`
}

// addEdits adds pending edits, before they are written to the file.
func (r *changeRecord) addEdits(file configFile, edits []tomledit.Edit) {
	// The record can have edits that the file does not have: another program replaced the file, or
	// a run was killed before it wrote the file.
	if text, _, err := containerdconfig.Undo(file.text, r.Edits); err == nil && bytes.Equal(text, file.text) {
		r.removeEdits()
	}
	if len(r.Edits) == 0 {
		r.Config, r.Created = file.path, !file.exists
	}
	r.Edits, r.Pending, r.Failure = append(r.Edits, edits...), r.Pending+len(edits), nil
}

// beginRestart makes a restart due, before containerd's files are changed for it.
func (r *changeRecord) beginRestart() { r.RestartDue = true }

// confirmLoaded makes all edits loaded, because the running containerd has them. A restart that is
// due stays due: it can be for another change.
func (r *changeRecord) confirmLoaded() { r.Pending = 0 }

// endRestart makes all edits loaded, because containerd has restarted.
func (r *changeRecord) endRestart() { r.Pending, r.RestartDue, r.Failure = 0, false, nil }

// failRestart records why containerd did not restart, for [failure.checkRetry].
func (r *changeRecord) failRestart(attempt string, cause error) {
	r.Failure = &failure{attempt, time.Now(), remedy.Text(cause)}
}

// clearFailure allows the same attempt again, because the node has changed.
func (r *changeRecord) clearFailure() { r.Failure = nil }

// pendingEdits returns the edits that are undone if containerd does not start with them.
func (r *changeRecord) pendingEdits() []tomledit.Edit { return r.Edits[len(r.Edits)-r.Pending:] }

// removePending removes the pending edits, which were undone.
func (r *changeRecord) removePending() {
	r.Edits, r.Pending = r.Edits[:len(r.Edits)-r.Pending], 0
	if len(r.Edits) == 0 {
		r.removeEdits()
	}
}

// removeEdits removes all edits, which were undone, and the failure. A restart that is due stays due.
func (r *changeRecord) removeEdits() {
	*r = changeRecord{Format: recordFormat, RestartDue: r.RestartDue}
}

// failure is a change with which containerd did not restart.
type failure struct {
	// Attempt is a hash of everything that can affect the result of the restart.
	Attempt string    `json:"attempt"`
	At      time.Time `json:"at"`
	Cause   string    `json:"error"`
}

func (f *failure) Error() string {
	return fmt.Sprintf("containerd did not restart with this configuration at %s: %s", f.At.UTC().Format(time.RFC3339), f.Cause)
}

// retryPause is the time before the same configuration is tried again. The kubelet restarts a
// failed init container every few minutes, and each attempt restarts the node's containerd twice.
const retryPause = time.Hour

// checkRetry returns an error if an attempt has failed within [retryPause].
func (f *failure) checkRetry(attempt string, now time.Time) error {
	// The clock may have been set back.
	if f == nil || f.Attempt != attempt || now.Before(f.At) || now.Sub(f.At) >= retryPause {
		return nil
	}
	return fmt.Errorf("%w; it is tried again after %v, or with another --restart-timeout", f, retryPause)
}

func recordPath(stateDir string) string { return filepath.Join(stateDir, "runtime-configure.json") }

// readRecord returns the record of a state directory, which is empty if there is no file.
func readRecord(stateDir string) (changeRecord, error) {
	var r changeRecord
	err := statefile.Read(recordPath(stateDir), &r)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return changeRecord{Format: recordFormat}, nil
	case err != nil:
		return changeRecord{}, err
	case r.Format != recordFormat:
		return changeRecord{}, fmt.Errorf("the record %s has the unknown format %d", recordPath(stateDir), r.Format)
	}
	r.Pending = min(max(r.Pending, 0), len(r.Edits)) // An administrator may have edited the file.
	return r, nil
}

// save writes the record. It removes the file of an empty record, and then the state directory if
// that is empty.
func (r changeRecord) save(stateDir string) error {
	if reflect.DeepEqual(r, changeRecord{Format: recordFormat}) {
		return statefile.Remove(recordPath(stateDir))
	}
	return statefile.Write(recordPath(stateDir), r)
}

// isConfigured reports whether a command has changed containerd's configuration. It returns true
// if the record cannot be read.
func isConfigured(stateDir string) bool {
	r, err := readRecord(stateDir)
	return err != nil || r.Config != "" || r.RestartDue
}

// Leftovers are the problems that interrupted commands left: a record that cannot be used, a
// restart that failed, and one that is due.
type Leftovers struct {
	RecordPath                  string
	Damaged, Failed, RestartDue error
}

// ReadLeftovers returns what interrupted commands left.
func ReadLeftovers(configFile, stateDir string) (l Leftovers) {
	r, err := readRecord(stateDir)
	if err == nil && r.Config != "" {
		_, err = readRecordedConfig(configFile, stateDir)
	}
	l.RecordPath, l.Damaged = recordPath(stateDir), err
	if r.Failure != nil {
		l.Failed = r.Failure
	}
	if r.RestartDue {
		l.RestartDue = errRestartDue
	}
	return l
}
