// Package cli has what the command lines of all programs share: signals, exit statuses, flags,
// output formats and the version.
package cli

import (
	"cmp"
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
	command.SetFlagErrorFunc(flagError)
	command.InitDefaultHelpCmd()
	command.InitDefaultCompletionCmd(args...)
	checkArguments(command)
	called, err := command.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	// Each of several joined errors is a line.
	fmt.Fprintf(stderr, "%s: %s\n", command.Name(), strings.ReplaceAll(errlog.Text(err), "\n", "\n"+command.Name()+": "))
	status := statusError{status: exitFailure}
	_ = errors.As(err, &status)
	if status.status == exitUsage {
		fmt.Fprintf(stderr, "Try '%s --help'.\n", called.CommandPath())
	}
	fmt.Fprint(stderr, permissionRemedy(command.Name(), err, IsAdministrator()))
	return status.status
}

// permissionRemedy returns the remedy for a lack of permission, "" for another error.
func permissionRemedy(program string, err error, administrator bool) string {
	if administrator || !errors.Is(err, fs.ErrPermission) {
		return ""
	}
	return fmt.Sprintf("Run %s as %s.\n", program, administratorName)
}

// flagError returns a flag's error as an error of usage.
func flagError(_ *cobra.Command, err error) error { return UsageError("%w", err) }

// checkArguments makes command and its subcommands accept flags only, unless they have Args, and
// makes a group of commands print its help.
func checkArguments(command *cobra.Command) {
	for _, subcommand := range command.Commands() {
		checkArguments(subcommand)
	}
	command.Flags().SortFlags = false
	check, isGroup := command.Args, command.HasSubCommands() && !command.Runnable()
	switch {
	case check == nil && command.Name() == "help":
		check = helpTopic
	case check == nil || isGroup:
		check = noArguments
	}
	command.Args = func(c *cobra.Command, args []string) error {
		if err := cmp.Or(check(c, args), c.ValidateRequiredFlags()); err != nil {
			return UsageError("%w", err)
		}
		return nil
	}
	if isGroup {
		command.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		command.DisableFlagsInUseLine = true
	}
}

// Arguments accepts between minimum and maximum arguments.
func Arguments(minimum, maximum int) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) < minimum || len(args) > maximum {
			return fmt.Errorf("got %d arguments, want '%s'", len(args), command.UseLine())
		}
		return nil
	}
}

// helpTopic accepts the path of a command, such as "runtime install".
func helpTopic(help *cobra.Command, args []string) error {
	command, rest, err := help.Root().Find(args)
	if err != nil {
		return err
	}
	return noArguments(command, rest)
}

func noArguments(command *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !command.HasSubCommands():
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	hint := ""
	command.SuggestionsMinimumDistance = 2
	if similar := command.SuggestionsFor(args[0]); len(similar) > 0 {
		hint = "; did you mean " + strings.Join(similar, " or ") + "?"
	}
	return fmt.Errorf("unknown command %q%s", args[0], hint)
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
