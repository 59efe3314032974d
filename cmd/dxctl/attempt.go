package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"directx-nri/internal/durable"
)

const (
	// attemptName is the record, in the state directory, of a configuration with which
	// containerd did not restart.
	attemptName = "configure-failed.json"
	// attemptPause is how long the same configuration is not tried again. The kubelet
	// restarts a failed init container every few minutes, and each attempt stops the
	// node's containerd twice.
	attemptPause = time.Hour
)

// attempt is a change of containerd's configuration and a way to restart containerd.
type attempt struct {
	state string
	id    string // a hash of everything that affects the result
}

// failedAttempt is the content of the record.
type failedAttempt struct {
	Attempt string    `json:"attempt"`
	At      time.Time `json:"at"`
	Error   string    `json:"error"`
}

func (a attempt) path() string { return filepath.Join(a.state, attemptName) }

// last returns the record of any attempt. A damaged record does not exist.
func (a attempt) last() (last failedAttempt, exists bool, err error) {
	text, exists, err := readFile(a.path())
	if err != nil || !exists {
		return last, false, err
	}
	return last, json.Unmarshal(text, &last) == nil, nil
}

// check returns an error if this attempt has failed within [attemptPause].
func (a attempt) check(now time.Time) error {
	last, exists, err := a.last()
	if err != nil || !exists || last.Attempt != a.id {
		return err
	}
	if past := now.Sub(last.At); past < 0 || past >= attemptPause { // The clock may have been set back.
		return nil
	}
	return fmt.Errorf("containerd did not restart with this configuration at %s: %s; it is tried again after %v, or when %s is removed",
		last.At.UTC().Format(time.RFC3339), last.Error, attemptPause, a.path())
}

// failed records the cause and returns it.
func (a attempt) failed(now time.Time, cause error) error {
	text, err := json.MarshalIndent(failedAttempt{a.id, now, cause.Error()}, "", "  ")
	if err == nil {
		err = durable.MakePrivate(a.state)
	}
	if err == nil {
		err = durable.Replace(a.path(), append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("%w; record the failed restart: %w", cause, err)
	}
	return cause
}

// forgetAttempts removes the record.
func forgetAttempts(state string) error {
	path := filepath.Join(state, attemptName)
	if !exists(path) {
		return nil
	}
	if err := durable.Remove(path); err != nil {
		return fmt.Errorf("remove the record of a failed restart: %w", err)
	}
	_ = os.Remove(state) // Fails unless it is empty.
	return nil
}
