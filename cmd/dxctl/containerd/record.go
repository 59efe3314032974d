package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"time"

	"github.com/directx-nri/directx-nri/cmd/dxctl/statefile"
	"github.com/directx-nri/directx-nri/internal/durable"
)

// readFile reads a file that another process may replace at the same time.
func readFile(path string) (text []byte, exists bool, err error) {
	text, err = durable.Read(path, math.MaxInt64)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return text, err == nil, err
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

func attemptPath(state string) string { return filepath.Join(state, attemptName) }

// lastAttempt returns the last failure, nil if there is none or its record is damaged.
func lastAttempt(state string) *failedAttempt {
	last, err := statefile.Read[failedAttempt](attemptPath(state))
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
	return fmt.Errorf("%s; it is tried again after %v, or when %s is removed", last, attemptPause, attemptPath(state))
}

func (f failedAttempt) String() string {
	return fmt.Sprintf("containerd did not restart with this configuration at %s: %s", f.At.UTC().Format(time.RFC3339), f.Cause)
}
