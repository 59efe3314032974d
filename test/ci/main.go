//go:build linux

// Command ci runs everything that README says about tests, on a machine that
// has Go, make, git, a C compiler (for the race detector) and root; all other
// parts are installed by the project's own scripts.
//
//	.ci/run             all steps
//	.ci/run lint test   these
//
// It ends with a table of the steps and of what their tests came to. A step that
// fails, a test that is skipped, and a step of tests that ran none fail the run. A
// step whose tests failed while others ran beside it is run again alone, and the
// table tells of both.
// out/ci has each step's output, the results of each test in report.json, and
// the program itself.
//
//	ci gotest ARGUMENTS...
//
// is what steps run in place of `go test ARGUMENTS...`: it prints what a person
// wants to read of it, and notes the results for the table.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:])
	cancel()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		os.Exit(exit.ExitCode()) // `go test` has said why.
	case err != nil:
		fmt.Fprintln(os.Stderr, "ci:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "gotest" {
		return gotest(ctx, args[1:], os.Stdout, os.Getenv(resultsVar))
	}
	// A write that nobody reads is an error, and not the end of a run that has
	// steps to end first.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	stages, err := choose(plan, args)
	if err != nil {
		return err
	}
	r, err := newRunner(folder, os.Stdout)
	if err != nil {
		return err
	}
	return r.runAll(ctx, stages)
}
