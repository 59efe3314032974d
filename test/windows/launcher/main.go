//go:build windows

// The launcher stands in front of the real containerd-shim-runhcs-v1.exe, in
// the folder real beside it, under Wine alone: there the first connection to a
// new shim's pipe is lost, so the launcher makes that one. It runs runhcs with
// the arguments, input and environment that it was given, and prints its answer
// on when the pipe is ready.
//
// It goes by the name containerd-shim-runhcs-v1.exe, and as
// containerd-shim-plain-v1.exe it is the runtime io.containerd.plain.v1: what a
// node without this project does.
//
// It notes in the folder launcher beside it what it was called with, and
// stands still when a test wants to look at a start that does not end:
//
//	launcher\calls.log             a line of JSON for each call
//	launcher\config-ID.json        the config.json that runhcs was started on
//	launcher\hang-before-ID        wait before runhcs is run, until it is removed
//	launcher\hang-after-ID         wait before runhcs' answer is printed on
//	launcher\hanging-ID            is there while it waits
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

const runhcs = "containerd-shim-runhcs-v1.exe"

func main() {
	status, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "launcher: %v\n", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// run does what the launcher is for, and returns the exit status.
func run(args []string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	l := launcher{
		runhcs: filepath.Join(filepath.Dir(self), "real", runhcs),
		notes:  filepath.Join(filepath.Dir(self), "launcher"),
		args:   args,
		id:     flagValue(args, "-id"),
	}
	cmd := exec.Command(l.runhcs, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if !slices.Contains(args, "start") {
		if err := l.note(nil); err != nil {
			return 0, err
		}
		return exitStatus(cmd.Run())
	}
	return l.start(cmd)
}

// launcher is one call of the program.
type launcher struct {
	runhcs, notes string
	args          []string
	id            string
}

// start runs runhcs' start and wakes the pipe that it answers with.
func (l launcher) start(cmd *exec.Cmd) (int, error) {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 0, fmt.Errorf("read the runtime's options: %w", err)
	}
	if err := l.note(stdin); err != nil {
		return 0, err
	}
	if err := l.hang("before"); err != nil {
		return 0, err
	}
	var answer bytes.Buffer
	cmd.Stdin, cmd.Stdout = bytes.NewReader(stdin), &answer
	status, err := exitStatus(cmd.Run())
	// On a busy machine Wine sometimes fails to start a program.
	for try := 0; err != nil && cmd.Process == nil && try < 3; try++ {
		cmd = exec.Command(l.runhcs, l.args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &answer, os.Stderr
		status, err = exitStatus(cmd.Run())
	}
	if status != 0 || err != nil {
		return status, err
	}
	// The serving process opens its pipe before runhcs' start ends.
	if pipe, err := os.OpenFile(answer.String(), os.O_RDWR, 0); err == nil {
		_ = pipe.Close()
	}
	if err := l.hang("after"); err != nil {
		return 0, err
	}
	_, err = os.Stdout.Write(answer.Bytes())
	return 0, err
}

// call is what is noted of a call.
type call struct {
	ID    string   `json:"id"`
	Args  []string `json:"args"`
	Stdin []byte   `json:"stdin"`
	Dir   string   `json:"dir"`
	Env   []string `json:"env"`
}

// note writes the call down, and keeps a start's config.json.
func (l launcher) note(stdin []byte) error {
	if err := os.MkdirAll(l.notes, 0o700); err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	line, err := json.Marshal(call{ID: l.id, Args: l.args, Stdin: stdin, Dir: dir, Env: os.Environ()})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(l.notes, "calls.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	config, err := os.ReadFile("config.json")
	if errors.Is(err, fs.ErrNotExist) || !slices.Contains(l.args, "start") {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.notes, "config-"+l.id+".json"), config, 0o600)
}

// hang waits as long as the test's file is there.
func (l launcher) hang(when string) error {
	order, sign := filepath.Join(l.notes, "hang-"+when+"-"+l.id), filepath.Join(l.notes, "hanging-"+l.id)
	if _, err := os.Stat(order); err != nil {
		return nil
	}
	if err := os.WriteFile(sign, nil, 0o600); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(order); err != nil {
			return os.Remove(sign)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// flagValue returns what follows name among args, "" when nothing does.
func flagValue(args []string, name string) string {
	i := slices.Index(args, name)
	if i < 0 || i+1 >= len(args) {
		return ""
	}
	return args[i+1]
}

// exitStatus tells a program's failure from one to run it.
func exitStatus(err error) (int, error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}
