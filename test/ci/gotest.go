//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
)

// resultsVar names the file that gotest appends its results to, one JSON object
// a line. Without it there is none.
const resultsVar = "DIRECTX_NRI_CI_RESULTS"

// gotest runs `go test` with args, prints its output to out and notes the
// results. The error of tests that fail is an [exec.ExitError].
func gotest(ctx context.Context, args []string, out io.Writer, resultsFile string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stderr = os.Stderr
	return runGotest(cmd, slices.Contains(args, "-v"), out, resultsFile)
}

// runGotest is gotest for a command that prints what `go test -json` does.
func runGotest(cmd *exec.Cmd, verbose bool, out io.Writer, resultsFile string) error {
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go test: %w", err)
	}
	r := &reader{verbose: verbose}
	readErr := r.readAll(stdout, out)
	// What is left is read, or the tests would wait for ever.
	_, drainErr := io.Copy(io.Discard, stdout)
	err = cmd.Wait()
	return errors.Join(err, readErr, drainErr, appendResults(resultsFile, r.results))
}

// readAll reads events until their end.
func (r *reader) readAll(events io.Reader, out io.Writer) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			text := ""
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				text = r.read(e)
			} else {
				text = string(line) // Something that writes past `go test`.
			}
			if _, err := io.WriteString(out, text); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read what go test writes: %w", err)
		}
	}
}

func appendResults(path string, results []result) (err error) {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	enc := json.NewEncoder(f)
	for _, r := range results {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// readResults reads what appendResults wrote; no file is no results.
func readResults(path string) ([]result, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var results []result
	for dec := json.NewDecoder(f); ; {
		var r result
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			return results, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		results = append(results, r)
	}
}
