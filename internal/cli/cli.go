// Package cli has what the command lines of our programs share: signals, exit
// statuses, logs and the version.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// usageError is an incorrect call of a program.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Main runs command with the arguments of the process until it returns or a signal
// arrives, and returns the exit status. It prints the error of command.
func Main(command *cobra.Command) int {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	return Run(ctx, command, os.Stderr)
}

// Run is [Main] until ctx ends, with stderr as standard error.
func Run(ctx context.Context, command *cobra.Command, stderr io.Writer) int {
	return run(ctx, command, os.Args[1:], os.Stdout, stderr)
}

func run(ctx context.Context, command *cobra.Command, args []string, stdout, stderr io.Writer) int {
	command.SetArgs(args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	prepare(command)
	called, err := command.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "%s: %v\n", command.Name(), err)
	if usage := (usageError{}); errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Try '%s --help'.\n", called.CommandPath())
		return exitUsage
	}
	if status := (statusError{}); errors.As(err, &status) {
		return status.status
	}
	return exitFailure
}

// prepare makes command and those below it accept flags only, unless they have Args,
// and makes a group of commands require one of them.
func prepare(command *cobra.Command) {
	for _, below := range command.Commands() {
		prepare(below)
	}
	if args := command.Args; args != nil {
		command.Args = func(c *cobra.Command, list []string) error {
			if err := args(c, list); err != nil {
				return usageError{err}
			}
			return nil
		}
		return
	}
	command.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return nil
		case command.HasSubCommands():
			return usageError{fmt.Errorf("unknown command %q: want %s", args[0], subcommands(command))}
		}
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	if command.HasSubCommands() && !command.Runnable() {
		command.RunE = func(*cobra.Command, []string) error {
			return usageError{fmt.Errorf("missing command: want %s", subcommands(command))}
		}
	}
}

func subcommands(command *cobra.Command) string {
	var names []string
	for _, below := range command.Commands() {
		if below.IsAvailableCommand() {
			names = append(names, below.Name())
		}
	}
	return strings.Join(names, ", ")
}

// statusError is an error with an exit status of its own.
type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

// WithStatus returns err with an exit status other than 1.
func WithStatus(status int, err error) error { return statusError{err, status} }

// Version returns the program's version: set, or that of Go's build information.
func Version(set string) string {
	if set != "" {
		return set
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}

// Build returns the Go version and the platform of the program.
func Build() string {
	return fmt.Sprintf("built with %s for %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Usage returns an error about an incorrect call of the program.
func Usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
