package frontend

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"

	"golang.org/x/term"
)

// Command is a program to be run in a person's place.
type Command struct {
	// Path is the program's file.
	Path string
	Args []string
	// The program's own, when they are files.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Find returns the file of a program: path, or what is found on PATH under the
// program's name when path is "".
func Find(program Program, path string) (string, error) {
	name := path
	if name == "" {
		name = string(program)
	}
	found, err := exec.LookPath(name)
	switch {
	case err != nil && path == "":
		return "", fmt.Errorf("there is no %s on PATH: install it, or name its file with --frontend", program)
	case err != nil:
		return "", fmt.Errorf("run %s: %w", path, errors.Unwrap(err))
	}
	return found, nil
}

// Run runs c, waits until it has ended, and returns its exit status: 128 and the
// signal's number when a signal ended it. What this process is told by signals
// meanwhile, the program is told.
func Run(c Command) (status int, err error) {
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	received := make(chan os.Signal, 1)
	signal.Notify(received, passedOn()...)
	defer signal.Stop(received)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("run %s: %w", c.Path, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-received:
			passOn(cmd.Process, s, c.onTerminal())
		case err := <-ended:
			if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) {
				return 0, fmt.Errorf("run %s: %w", c.Path, err)
			}
			return exitStatus(cmd.ProcessState), nil
		}
	}
}

// onTerminal tells whether a person runs the program at a terminal: its input or
// output may be a pipe nevertheless.
func (c Command) onTerminal() bool {
	return slices.ContainsFunc([]any{c.Stdin, c.Stdout, c.Stderr}, func(stream any) bool {
		f, ok := stream.(*os.File)
		return ok && term.IsTerminal(int(f.Fd()))
	})
}
