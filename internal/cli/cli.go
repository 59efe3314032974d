// Package cli has what the command lines of all programs share: signals, exit statuses, flags,
// output formats and the version.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

// Exit statuses of all programs.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitUnknown = 3
)

type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

// UsageError returns an error about an incorrect call of the program.
func UsageError(format string, args ...any) error {
	return statusError{fmt.Errorf(format, args...), exitUsage}
}

// UnknownResult returns an error that reports that the result of a check is unknown because of err.
func UnknownResult(err error) error { return statusError{err, exitUnknown} }

// Main runs command with the arguments of the process until it returns or a signal
// arrives, and returns the exit status. It prints the error of command.
func Main(command *cobra.Command) int {
	stops := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // As with nohup.
		stops = append(stops, syscall.SIGHUP)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), stops...)
	defer cancel()
	return run(ctx, command, os.Args[1:], os.Stdout, os.Stderr)
}

func run(ctx context.Context, command *cobra.Command, args []string, stdout, stderr io.Writer) int {
	command.SetArgs(args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	command.SilenceErrors, command.SilenceUsage = true, true
	hasBegun := false
	prepare(command, &hasBegun)
	called, err := command.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case !hasBegun:
		err = UsageError("%s", errlog.OneLine(err.Error())) // With the commands that Cobra suggests.
	}
	text := err.Error()
	if remedy := errlog.RemedyOf(err); remedy != "" {
		text += "; " + remedy
	}
	// Each of several joined errors is a line.
	fmt.Fprintf(stderr, "%s: %s\n", command.Name(), strings.ReplaceAll(text, "\n", "\n"+command.Name()+": "))
	status := statusError{status: exitFailure}
	_ = errors.As(err, &status)
	switch {
	case status.status == exitUsage:
		fmt.Fprintf(stderr, "Try '%s --help'.\n", called.CommandPath())
	case errors.Is(err, fs.ErrPermission):
		fmt.Fprintf(stderr, "Run %s as root, or on Windows as an administrator.\n", command.Name())
	}
	return status.status
}

// prepare makes command and its subcommands accept flags only, unless they have Args, and makes a group of
// commands print its help. The commands set hasBegun: an error before that is one of the call.
func prepare(command *cobra.Command, hasBegun *bool) {
	for _, subcommand := range command.Commands() {
		prepare(subcommand, hasBegun)
	}
	command.Flags().SortFlags = false
	if command.Args == nil && (command.HasParent() || !command.HasSubCommands()) { // Otherwise Cobra suggests commands.
		command.Args = cobra.NoArgs
	}
	if command.HasSubCommands() && !command.Runnable() {
		command.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		command.DisableFlagsInUseLine = true
	}
	run := command.RunE
	command.RunE = func(c *cobra.Command, args []string) error {
		*hasBegun = true
		return run(c, args)
	}
}

// AddEnvironment makes environment variables set the flags of command that its command line does not set:
// DIRECTX_NRI_LOG_LEVEL is --log-level.
func AddEnvironment(command *cobra.Command) {
	command.PreRunE = func(command *cobra.Command, _ []string) (err error) {
		command.Flags().VisitAll(func(flag *pflag.Flag) {
			name := "DIRECTX_NRI_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
			value := os.Getenv(name)
			if value == "" || flag.Changed {
				return
			}
			if setErr := command.Flags().Set(flag.Name, value); setErr != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", name, setErr))
			}
		})
		return err
	}
}

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
