package noderuntime

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"time"

	"github.com/directx-nri/directx-nri/cmd/dxctl/statefile"
	"github.com/directx-nri/directx-nri/internal/tomledit"
)

const (
	recordName   = "runtime-configure.json"
	recordFormat = 1
)

// changeRecord is the content of the file that records dxctl's changes of containerd's
// configuration. It is written before each change, so that the next run can continue a run that was
// killed.
type changeRecord struct {
	Format int `json:"format"`
	// Config is the configuration file, "" if there are no edits. Created reports whether dxctl
	// created it.
	Config  string          `json:"config,omitempty"`
	Created bool            `json:"created,omitempty"`
	Edits   []tomledit.Edit `json:"edits,omitempty"`
	// Pending is the number of the last edits, with which containerd has not started yet.
	Pending int `json:"pending,omitempty"`
	// RestartDue reports whether a command has not finished its restart of containerd.
	RestartDue bool `json:"restartDue,omitempty"`
	// Failure is nil if the last restart succeeded.
	Failure *failure `json:"failure,omitempty"`
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
	if f == nil || f.Attempt != attempt {
		return nil
	}
	if past := now.Sub(f.At); past < 0 || past >= retryPause { // The clock may have been set back.
		return nil
	}
	return fmt.Errorf("%w; it is tried again after %v, or with another --restart-timeout", f, retryPause)
}

func recordPath(stateDir string) string { return filepath.Join(stateDir, recordName) }

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

// Leftovers returns the path of the record, and what interrupted commands left in it: why it is
// damaged, a restart that failed, and one that is due.
func Leftovers(configFile, stateDir string) (path string, damaged, failed, due error) {
	r, err := readRecord(stateDir)
	if err == nil && r.Config != "" {
		_, err = readRecordedConfig(configFile, stateDir)
	}
	if r.Failure != nil {
		failed = r.Failure
	}
	if r.RestartDue {
		due = errRestartDue
	}
	return recordPath(stateDir), err, failed, due
}
