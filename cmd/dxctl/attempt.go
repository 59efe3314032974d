package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/durable"
)

const (
	// attemptName is the file in our state folder that tells of a restart with which
	// containerd did not come back as configured.
	attemptName = "configure-failed.json"
	// attemptPause is how long the same is not tried again. The kubelet starts an init
	// container that has failed every few minutes, and each attempt takes a node's
	// containerd from it twice.
	attemptPause = time.Hour
)

// attempt is a change and the way to have containerd load it.
type attempt struct {
	state string
	id    string // a hash of all that decides how it ends
}

// failedAttempt is what is kept of it.
type failedAttempt struct {
	Attempt string    `json:"attempt"`
	At      time.Time `json:"at"`
	Error   string    `json:"error"`
}

func (a attempt) path() string { return filepath.Join(a.state, attemptName) }

// last returns the record, of whatever attempt it is; there is false also for one
// that says nothing to us.
func (a attempt) last() (last failedAttempt, there bool, err error) {
	text, there, err := readFile(a.path())
	if err != nil || !there {
		return last, false, err
	}
	return last, json.Unmarshal(text, &last) == nil, nil
}

// check returns an error when the same has just failed. A record that says nothing
// to us is no reason to keep from anything: it is written anew.
func (a attempt) check(now time.Time) error {
	last, there, err := a.last()
	if err != nil || !there || last.Attempt != a.id {
		return err
	}
	// Clocks are set back.
	if past := now.Sub(last.At); past < 0 || past >= attemptPause {
		return nil
	}
	return fmt.Errorf("containerd did not come back with this at %s: %s; the same is tried again after %v, or at once when %s is removed",
		last.At.UTC().Format(time.RFC3339), last.Error, attemptPause, a.path())
}

// failedConfigure tells of the last restart that failed. What says nothing to us keeps
// nobody from anything.
func failedConfigure(state string) doctor.FailedConfigure {
	a := attempt{state: state}
	last, there, err := a.last()
	switch {
	case err != nil:
		return doctor.FailedConfigure{Record: a.path(), Err: err}
	case !there:
		return doctor.FailedConfigure{}
	}
	return doctor.FailedConfigure{Record: a.path(), At: last.At, Why: last.Error}
}

// failed keeps why it has failed, and returns that.
func (a attempt) failed(now time.Time, why error) error {
	text, err := json.MarshalIndent(failedAttempt{a.id, now, why.Error()}, "", "  ")
	if err == nil {
		err = durable.MakePrivate(a.state)
	}
	if err == nil {
		err = durable.Replace(a.path(), append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("%w; and it cannot be kept that this was tried: %w", why, err)
	}
	return why
}

// forgetAttempts has nothing keep from trying.
func forgetAttempts(state string) error {
	path := filepath.Join(state, attemptName)
	if !exists(path) {
		return nil
	}
	if err := durable.Remove(path); err != nil {
		return fmt.Errorf("forget a restart that failed: %w", err)
	}
	_ = os.Remove(state) // Fails as long as something else is in it.
	return nil
}
