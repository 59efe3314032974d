package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/directx-nri/directx-nri/cmd/dxctl/statefile"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/durable"
)

const (
	recordName   = "runtime-configure.json"
	recordFormat = 1
)

// record is the file in the state directory with what dxctl has changed, for its next run.
// Each step of a change is recorded before it is made.
type record struct {
	Format int `json:"format"`
	// Change is nil if the configuration file has no change of ours.
	*Change
	// Restart is nil unless one is unfinished.
	Restart *pendingRestart `json:"restart,omitempty"`
	// Failure is nil if the last restart succeeded.
	Failure *failure `json:"failure,omitempty"`
}

// Change is our change of a configuration file.
type Change struct {
	// Config is the file.
	Config string `json:"config"`
	// Created reports whether the file did not exist before.
	Created bool `json:"created,omitempty"`
	// Original is the hash of the original file, "" if others changed it between our
	// changes, so that the copy is out of date.
	Original string `json:"original,omitempty"`
	// Written is the hash of what we wrote last, and At the time.
	Written string                  `json:"written"`
	At      time.Time               `json:"at,omitzero"`
	Edits   []containerdconfig.Edit `json:"edits"`
}

// pendingRestart is a restart of containerd that is not finished, and the change of its
// configuration or of its containers' shim that requires it. Whatever kills dxctl, another
// process can finish it: the next run, or the scheduled task that restarts containerd.
type pendingRestart struct {
	// Attempt identifies the change; see [failure]. "" if a failure is not recorded.
	Attempt string `json:"attempt,omitempty"`
	// Before is what a failure restores, nil if containerd's configuration does not change.
	Before *version `json:"before,omitempty"`
	// Written is the fingerprint of the new configuration file.
	Written string `json:"written,omitempty"`
	// Handlers are those that must be loaded with Shim after the restart.
	Handlers []string `json:"handlers,omitempty"`
	Shim     string   `json:"shim,omitempty"`
	// Services are those that ran and depend on containerd's.
	Services []string `json:"services,omitempty"`
	// Failed is why the file is restored; "" before.
	Failed string `json:"failed,omitempty"`
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
func readRecord(stateDir string) (*record, error) {
	r, err := statefile.Read[record](recordPath(stateDir))
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		return &record{Format: recordFormat}, nil
	case r.Format != recordFormat:
		return nil, fmt.Errorf("the record %s has the unknown format %d", recordPath(stateDir), r.Format)
	}
	return r, nil
}

// updateRecord changes the record of a state directory. An empty one is removed, and the
// directory if it is empty then.
func updateRecord(stateDir string, change func(*record)) error {
	r, err := readRecord(stateDir)
	if err != nil {
		return err
	}
	if change(r); *r == (record{Format: recordFormat}) {
		return statefile.Remove(recordPath(stateDir))
	}
	return statefile.Write(recordPath(stateDir), r)
}

// ForgetFailure lets the next command try again what has failed.
func ForgetFailure(stateDir string) error {
	return updateRecord(stateDir, func(r *record) { r.Failure = nil })
}

// IsConfigured reports whether a command has changed containerd's configuration. It is true
// if that is unknown.
func IsConfigured(stateDir string) bool {
	r, err := readRecord(stateDir)
	return err != nil || r.Change != nil || r.Restart != nil
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
	path := recordPath(stateDir)
	r, err := readRecord(stateDir)
	if err != nil {
		return []Leftover{{DamagedRecord, path, err}}
	}
	f, err := openFile(configFile, stateDir)
	switch {
	case err != nil && r.Change != nil:
		list = append(list, Leftover{DamagedRecord, path, err})
	case err == nil && f.Change == nil && durable.Exists(f.backupPath()):
		list = append(list, Leftover{DamagedRecord, f.backupPath(), errors.New("containerd's configuration has a backup without a record of the changes")})
	}
	if r.Failure != nil {
		list = append(list, Leftover{FailedRestart, path, errors.New(r.Failure.String())})
	}
	if r.Restart != nil {
		list = append(list, Leftover{PendingRestart, path, errUnfinished})
	}
	return list
}

// savedFile is the content of a file.
type savedFile struct {
	Path   string      `json:"path"`
	Exists bool        `json:"exists"`
	Text   []byte      `json:"text,omitempty"`
	Perm   fs.FileMode `json:"perm"`
}

// saveFile reads a file that another process may replace at the same time.
func saveFile(path string) (savedFile, error) {
	const newFilePerm = 0o644
	text, err := durable.Read(path, math.MaxInt64)
	if errors.Is(err, fs.ErrNotExist) {
		return savedFile{Path: path, Perm: newFilePerm}, nil
	}
	if err != nil {
		return savedFile{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return savedFile{}, err
	}
	return savedFile{path, true, text, info.Mode().Perm()}, nil
}

func (f savedFile) restore() error {
	if !f.Exists {
		return durable.Remove(f.Path)
	}
	return durable.ReplaceLike(f.Path, f.Path, f.Text, f.Perm)
}

// fingerprint identifies the content of the file, or that it does not exist.
func (f savedFile) fingerprint() string {
	if !f.Exists {
		return "none"
	}
	return hash(f.Text)
}
