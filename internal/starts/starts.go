// Package starts tells the advertiser how the runtime shim's starts went.
//
// The shim runs for milliseconds and can serve no metrics. So it leaves a line
// for each container that asked for a GPU in a file of the state folder, and the
// advertiser takes the file away from time to time and counts. Nothing depends on it but
// numbers: what cannot be written is dropped, and what cannot be read is skipped.
package starts

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"directx-nri/internal/durable"
)

const (
	// fileName is the file in the state folder that is appended to, takenName
	// the one that is being read.
	fileName  = "starts.jsonl"
	takenName = "starts.taken.jsonl"
	// maxBytes bounds the file of a node where nobody reads it. One line has
	// about 100 bytes.
	maxBytes = 1 << 20
	// maxLine in bytes is above every line that Append writes.
	maxLine = 512
)

// Event is how one start went.
type Event struct {
	// Time is when it was decided.
	Time time.Time `json:"time"`
	// Refused is why the container was not started, "" when it was: one word of a
	// small set.
	Refused string `json:"refused,omitempty"`
	// Took is how long the shim took from its start to its decision.
	Took time.Duration `json:"tookNanoseconds"`
}

// Files returns the files that are written into a state folder, which need not be
// there.
func Files(stateDir string) []string {
	return []string{filepath.Join(stateDir, fileName), filepath.Join(stateDir, takenName)}
}

// Append adds event to the file in the state folder, in one write, so that the
// lines of starts at the same time do not mix. It makes no folder.
func Append(stateDir string, event Event) error {
	line, err := json.Marshal(event)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(stateDir, fileName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if info, statErr := f.Stat(); statErr != nil || info.Size() > maxBytes {
		return errors.Join(statErr, f.Close())
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// Reader takes events out of a state folder. There is one for each folder, and
// it is not for several goroutines.
type Reader struct{ stateDir string }

// NewReader returns the reader of a state folder, which need not exist yet.
func NewReader(stateDir string) *Reader { return &Reader{stateDir} }

// Take returns the events that were there at the call before this one, oldest
// first, and how many lines could not be understood; these also beside an
// error. It is called at intervals of seconds.
//
// The file is renamed at one call and read at the next. Who opened it under its
// old name has written to it by then.
func (r *Reader) Take() (events []Event, skipped int, err error) {
	taken := filepath.Join(r.stateDir, takenName)
	data, err := read(taken)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, 0, err
	default:
		// Counted twice is worse than not at all: what cannot be removed would
		// come again.
		if err := durable.Remove(taken); err != nil {
			return nil, 0, err
		}
		events, skipped = parse(data)
	}
	// On Windows a file that somebody writes to cannot be renamed: it is taken
	// at a later call.
	if err := os.Rename(filepath.Join(r.stateDir, fileName), taken); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return events, skipped, err
	}
	return events, skipped, nil
}

// read returns the content of a regular file. Somebody who puts a pipe there
// must not make us wait.
func read(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("it is no regular file: remove it")}
	}
	return durable.Read(path, maxBytes+maxLine)
}

// parse returns the events in data. Lines that are torn, or not ours, are
// skipped and counted.
func parse(data []byte) (events []Event, skipped int) {
	for line := range bytes.Lines(data) {
		event, ok := parseLine(line)
		if !ok {
			skipped++
			continue
		}
		events = append(events, event)
	}
	return events, skipped
}

func parseLine(line []byte) (event Event, ok bool) {
	if len(line) > maxLine || !bytes.HasSuffix(line, []byte("\n")) {
		return Event{}, false
	}
	if err := json.Unmarshal(line, &event); err != nil {
		return Event{}, false
	}
	return event, event.Took >= 0 && !event.Time.IsZero()
}
