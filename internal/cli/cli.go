// Package cli is what our programs' command lines have in common: signals,
// exit statuses, logging and the version.
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

// usageError is an error in how a program was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Main runs command with the process' arguments until it returns or the
// process is told to end, and returns the exit status. An error is printed
// here and nowhere else.
func Main(command *cobra.Command) int {
	saveMemory()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	return run(ctx, command, os.Args[1:], os.Stdout, os.Stderr)
}

// saveMemory trades a little time for memory, of which every node gives some to
// us: Go lets garbage grow to the size of what is in use, and we have hardly
// any of either. GOGC, where somebody sets it, counts more.
func saveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
}

func run(ctx context.Context, command *cobra.Command, args []string, stdout, stderr io.Writer) int {
	command.SetArgs(args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	command.SilenceErrors, command.SilenceUsage = true, true
	command.CompletionOptions.DisableDefaultCmd = true
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	prepare(command)
	version := takeVersion(command)
	called, err := command.ExecuteContextC(ctx)
	if errors.Is(err, errVersion) {
		fmt.Fprintln(stdout, command.Name(), version)
		return exitOK
	}
	if err == nil {
		return exitOK
	}
	if quiet := (quietError{}); errors.As(err, &quiet) {
		return quiet.status
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

// errVersion tells that the version is asked for.
var errVersion = errors.New("the version is asked for")

// takeVersion returns command's version, and has the flag for it end command with
// [errVersion]. Cobra would print it by a text/template: a program that links that
// package keeps every exported method of every type, a tenth of its memory.
func takeVersion(command *cobra.Command) string {
	version := command.Version
	if version == "" {
		return ""
	}
	command.InitDefaultVersionFlag()
	command.Version = ""
	args := command.Args
	command.Args = func(c *cobra.Command, list []string) error {
		if asked, err := c.Flags().GetBool("version"); err != nil || asked {
			return errors.Join(err, errVersion)
		}
		return args(c, list)
	}
	return version
}

// prepare has command and those below it take flags only, unless one says for
// itself what else it takes, and has a mere group of commands ask for one of
// them.
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
			return usageError{fmt.Errorf("%q is no command here: it takes %s%s", args[0], subcommands(command), meant(command, args[0]))}
		}
		return usageError{fmt.Errorf("%q is not expected here: everything is said by flags", args[0])}
	}
	if command.HasSubCommands() && !command.Runnable() {
		command.RunE = func(*cobra.Command, []string) error {
			return usageError{fmt.Errorf("a command is missing: %s", subcommands(command))}
		}
	}
}

// meant is a question after the commands whose names are close to name, or begin
// with it.
func meant(command *cobra.Command, name string) string {
	command.SuggestionsMinimumDistance = 2
	if len(name) < 5 {
		command.SuggestionsMinimumDistance = 1 // Short words are all alike.
	}
	names := command.SuggestionsFor(name)
	if len(names) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(names, " or ") + "?"
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

// WithStatus returns err as one with which the program ends with that exit
// status in place of 1.
func WithStatus(status int, err error) error { return statusError{err, status} }

// Version returns the program's version: set, when the build said one, and
// otherwise what Go knows of the build.
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

// Build says what the program was built with and for.
func Build() string {
	return fmt.Sprintf("built with %s for %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Usage returns an error that says that the program was called wrongly.
func Usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
