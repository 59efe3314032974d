package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// record is a JSON file in the state directory, for the next run of dxctl.
type record[T any] struct{ path string }

// read returns the content, or nil if the file does not exist. Others must not have
// written it: it becomes part of the configuration of a privileged program.
func (r record[T]) read() (*T, error) {
	text, exists, err := readFile(r.path)
	if err != nil || !exists {
		return nil, err
	}
	content := new(T)
	if err = durable.CheckFile(r.path); err == nil {
		err = json.Unmarshal(text, content)
	}
	if err != nil {
		return nil, fmt.Errorf("read the record %s: %w", r.path, err)
	}
	return content, nil
}

// write replaces the file, and creates the state directory if necessary.
func (r record[T]) write(content T) error {
	text, err := json.MarshalIndent(content, "", "  ")
	if err == nil {
		err = durable.MakePrivate(filepath.Dir(r.path))
	}
	if err == nil {
		err = durable.Replace(r.path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the record %s: %w", r.path, err)
	}
	return nil
}

// remove removes the file, and the state directory if it is empty then.
func (r record[T]) remove() error {
	err := durable.Remove(r.path)
	_ = os.Remove(filepath.Dir(r.path)) // Fails unless it is empty.
	return err
}

// readFile reads a file that another process may replace at the same time.
func readFile(path string) (text []byte, exists bool, err error) {
	text, err = durable.Read(path, math.MaxInt64)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return text, err == nil, err
}

// exists reports whether there is a file at path. It is true if that is unknown: a task
// whose record cannot be looked up has not ended.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

const (
	// attemptName is the record, in the state directory, of a [failedAttempt].
	attemptName = "configure-failed.json"
	// attemptPause is how long the same configuration is not tried again. The kubelet
	// restarts a failed init container every few minutes, and each attempt stops the
	// node's containerd twice.
	attemptPause = time.Hour
)

// failedAttempt is a change with which containerd did not restart.
type failedAttempt struct {
	// Attempt is a hash of everything that affects the result.
	Attempt string    `json:"attempt"`
	At      time.Time `json:"at"`
	Cause   string    `json:"error"`
}

func attemptRecord(state string) record[failedAttempt] {
	return record[failedAttempt]{filepath.Join(state, attemptName)}
}

// lastAttempt returns the last failure, nil if there is none or its record is damaged.
func lastAttempt(state string) *failedAttempt {
	last, err := attemptRecord(state).read()
	if err != nil {
		return nil
	}
	return last
}

// checkAttempt returns an error if an attempt has failed within [attemptPause].
func checkAttempt(state, attempt string, now time.Time) error {
	last := lastAttempt(state)
	if last == nil || last.Attempt != attempt {
		return nil
	}
	if past := now.Sub(last.At); past < 0 || past >= attemptPause { // The clock may have been set back.
		return nil
	}
	return fmt.Errorf("%s; it is tried again after %v, or when %s is removed", last, attemptPause, attemptRecord(state).path)
}

func (f failedAttempt) String() string {
	return fmt.Sprintf("containerd did not restart with this configuration at %s: %s", f.At.UTC().Format(time.RFC3339), f.Cause)
}
