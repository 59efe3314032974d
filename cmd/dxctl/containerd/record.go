package containerd

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"time"

	"github.com/directx-nri/directx-nri/cmd/dxctl/statefile"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
)

const (
	recordName   = "runtime-configure.json"
	recordFormat = 1
)

// changeRecord is the file in the state directory with our changes of containerd's configuration. It
// is written before each change, so that the next run can continue one that was killed.
type changeRecord struct {
	Format int `json:"format"`
	// Config is the configuration file, "" if there are no edits, and Created reports whether
	// it did not exist before.
	Config  string                  `json:"config,omitempty"`
	Created bool                    `json:"created,omitempty"`
	Edits   []containerdconfig.Edit `json:"edits,omitempty"`
	// Pending is how many of the last edits containerd has not started with yet.
	Pending int `json:"pending,omitempty"`
	// RestartDue reports that a command has to restart containerd and has not finished that.
	RestartDue bool `json:"restartDue,omitempty"`
	// Failure is nil if the last restart succeeded.
	Failure *failure `json:"failure,omitempty"`
}

// failure is a change with which containerd did not restart.
type failure struct {
	// Attempt is a hash of everything that affects the result.
	Attempt string    `json:"attempt"`
	At      time.Time `json:"at"`
	Cause   string    `json:"error"`
}

func (f failure) String() string {
	return fmt.Sprintf("containerd did not restart with this configuration at %s: %s", f.At.UTC().Format(time.RFC3339), f.Cause)
}

// retryPause is how long the same configuration is not tried again. The kubelet restarts a
// failed init container every few minutes, and each attempt stops the node's containerd
// twice.
const retryPause = time.Hour

// check returns an error if an attempt has failed within [retryPause].
func (f *failure) check(attempt string, now time.Time) error {
	if f == nil || f.Attempt != attempt {
		return nil
	}
	if past := now.Sub(f.At); past < 0 || past >= retryPause { // The clock may have been set back.
		return nil
	}
	return fmt.Errorf("%s; it is tried again after %v, or with another --restart-timeout", f, retryPause)
}

func recordPath(stateDir string) string { return filepath.Join(stateDir, recordName) }

// readRecord returns the record of a state directory, which is empty if there is no file.
func readRecord(stateDir string) (changeRecord, error) {
	r, err := statefile.Read[changeRecord](recordPath(stateDir))
	switch {
	case err != nil:
		return changeRecord{}, err
	case r == nil:
		return changeRecord{Format: recordFormat}, nil
	case r.Format != recordFormat:
		return changeRecord{}, fmt.Errorf("the record %s has the unknown format %d", recordPath(stateDir), r.Format)
	}
	r.Pending = min(max(r.Pending, 0), len(r.Edits)) // Others may have edited it.
	return *r, nil
}

// save writes the record. An empty one is removed, and the directory if it is empty then.
func (r changeRecord) save(stateDir string) error {
	if reflect.DeepEqual(r, changeRecord{Format: recordFormat}) {
		return statefile.Remove(recordPath(stateDir))
	}
	return statefile.Write(recordPath(stateDir), r)
}

// ForgetFailure lets the next command try again what has failed.
func ForgetFailure(stateDir string) error {
	r, err := readRecord(stateDir)
	if err != nil {
		return err
	}
	r.Failure = nil
	return r.save(stateDir)
}

// IsConfigured reports whether a command has changed containerd's configuration. It is true
// if that is unknown.
func IsConfigured(stateDir string) bool {
	r, err := readRecord(stateDir)
	return err != nil || r.Config != "" || r.RestartDue
}

// Leftover is what an interrupted command left in a file, and the problem with it.
type Leftover struct {
	Kind LeftoverKind
	Path string
	Err  error
}

// LeftoverKind is the kind of a [Leftover].
type LeftoverKind int

// The kinds of leftovers.
const (
	DamagedRecord LeftoverKind = iota
	FailedRestart
	PendingRestart
)

// Leftovers returns what interrupted commands left.
func Leftovers(configFile, stateDir string) (list []Leftover) {
	r, err := readRecord(stateDir)
	if err == nil && r.Config != "" {
		_, err = openChange(configFile, stateDir)
	}
	add := func(kind LeftoverKind, err error) { list = append(list, Leftover{kind, recordPath(stateDir), err}) }
	if err != nil {
		add(DamagedRecord, err)
	}
	if r.Failure != nil {
		add(FailedRestart, errors.New(r.Failure.String()))
	}
	if r.RestartDue {
		add(PendingRestart, errRestartDue)
	}
	return list
}
