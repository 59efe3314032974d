package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/frontend"
	"directx-nri/internal/cli"
	"directx-nri/ocispec"
)

type runOptions struct {
	byHand
	frontend  string
	address   string
	namespace string
	dryRun    bool
}

func newRunCommand() *cobra.Command {
	var o runOptions
	command := &cobra.Command{
		Use:   "run --for ctr|nerdctl [flags] -- [FLAG...] IMAGE [ARGUMENT...]",
		Short: "Run a container with GPUs by ctr or nerdctl",
		Long: `Runs 'ctr run' or 'nerdctl run' with the flags that 'dxctl flags' prints, and then
with all that stands behind --. The command is printed on standard error first.
The terminal is the program's own, and dxctl ends with its exit status: with 128
and the signal's number when a signal ended it.

dxctl's own failures have the status 1, and 2 when it was called wrongly.`,
		Example: `  dxctl run --for ctr --index 0 -- --rm -t docker.io/library/app:latest my-app
  dxctl run --for nerdctl --all -- --rm -it app
  dxctl run --for ctr --index 0 --namespace k8s.io -- --rm IMAGE ID nvidia-smi

  # only print the command
  dxctl run --for ctr --all --dry-run -- IMAGE ID

  # a node with the runtime shim
  dxctl run --for ctr --all --with-shim -- IMAGE ID`,
		Args: func(c *cobra.Command, args []string) error {
			switch at := c.ArgsLenAtDash(); {
			case at < 0 && len(args) == 0, at >= 0 && len(args) == at:
				return cli.Usage("no image is named: write it behind --, with all else that is for ctr or nerdctl")
			case at != 0:
				return cli.Usage("%q stands before --: write all that is for ctr or nerdctl behind it", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context(), args, frontend.Command{Stdin: c.InOrStdin(), Stdout: c.OutOrStdout(), Stderr: c.ErrOrStderr()})
		},
	}
	flags := command.Flags()
	o.addFlags(command)
	flags.StringVar(&o.frontend, "frontend", "", "the program's `FILE` (default: as found on PATH)")
	flags.StringVar(&o.address, "address", "", "containerd's `SOCKET` (default: the program's own, or CONTAINERD_ADDRESS)")
	flags.StringVarP(&o.namespace, "namespace", "n", "", "containerd's `NAMESPACE` (default: the program's own, or CONTAINERD_NAMESPACE)")
	flags.BoolVar(&o.dryRun, "dry-run", false, "print the command on standard output and run nothing")
	return command
}

func (o *runOptions) run(ctx context.Context, args []string, c frontend.Command) error {
	flags, err := o.flags(ctx, ocispec.OS(containerOS()), callingShell(), c.Stderr)
	if err != nil {
		return err
	}
	c.Args = slices.Concat(o.global(), []string{"run"}, flags, args)
	if o.dryRun {
		program := o.frontend
		if program == "" {
			program = o.program
		}
		return printCommand(c.Stdout, program, c.Args)
	}
	if c.Path, err = frontend.Find(frontend.Program(o.program), o.frontend); err != nil {
		return err
	}
	_ = printCommand(c.Stderr, c.Path, c.Args) // Nobody reads it.
	status, err := frontend.Run(c)
	if err != nil {
		return err
	}
	if status != 0 {
		// The program has said what there is to say.
		return cli.Quiet(status)
	}
	return nil
}

// global returns the flags that stand before the program's command.
func (o *runOptions) global() []string {
	var flags []string
	if o.address != "" {
		flags = append(flags, "--address", o.address)
	}
	if o.namespace != "" {
		flags = append(flags, "--namespace", o.namespace)
	}
	return flags
}

// printCommand prints a command as it could be typed, and otherwise as JSON.
func printCommand(w io.Writer, program string, args []string) error {
	line, err := callingShell().Command(program, args)
	if err == nil {
		_, err = fmt.Fprintln(w, line)
		return err
	}
	return printAs(w, outputJSON, slices.Concat([]string{program}, args))
}
