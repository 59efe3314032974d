package show

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/gpus"
	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/runflags"
)

// outputArgs is output with one argument on each line.
const outputArgs = "args"

type flagsOptions struct {
	gpus.Node
	gpus.Selection
	program     string
	withShim    bool
	containerOS string
	output      string
}

// NewFlagsCommand returns the command.
func NewFlagsCommand() *cobra.Command {
	o := flagsOptions{containerOS: runtime.GOOS}
	command := &cobra.Command{
		Use:   "flags",
		Short: "Print flags of ctr or nerdctl for a container with GPUs",
		Long: `Prints flags of 'ctr run' or 'nerdctl run' (1.7 and later) for GPUs and their driver
files: a line quoted for the shells of --container-os (text), an argument on each line
(args), or a list (json, yaml).`,
		Example: `  # bash
  mapfile -t gpu < <(dxctl flags --index 0 -o args)
  ctr run --rm "${gpu[@]}" IMAGE ID

  # PowerShell
  $gpu = dxctl flags --index 0 -o args
  ctr run --rm @gpu IMAGE ID`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	flags.SortFlags = false
	cli.AddChoice(command, &o.program, "for", "", "program that runs the container", string(runflags.Ctr), string(runflags.Nerdctl))
	o.Selection.AddFlags(command, &o.Node)
	flags.BoolVar(&o.withShim, "with-shim", false, "print flags that use the runtime shim")
	cli.AddChoice(command, &o.containerOS, "container-os", "", "the container's operating system", string(ocispec.Windows), string(ocispec.Linux))
	cli.AddOutputFlag(command, &o.output, cli.Text, outputArgs, cli.JSON, cli.YAML)
	o.Node.AddFlags(flags)
	o.AddFileFlags(flags)
	return command
}

func (o *flagsOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if o.Empty() {
		return cli.Usage("no GPU is selected: use --all, --index, --luid or --path; 'dxctl devices' lists the GPUs")
	}
	if err := errors.Join(o.Selection.Check(), o.Node.Check()); err != nil {
		return err
	}
	os := ocispec.OS(o.containerOS)
	flags, err := o.flags(ctx, runflags.Program(o.program), os, stderr)
	if err != nil {
		return err
	}
	return printFlags(stdout, o.output, os, flags)
}

// flags returns the program's flags for the selected GPUs.
func (o *flagsOptions) flags(ctx context.Context, program runflags.Program, os ocispec.OS, stderr io.Writer) ([]string, error) {
	present, p, err := o.Devices(ctx, stderr, o.containerOS)
	if err != nil {
		return nil, err
	}
	devices, err := decision.Select(o.Request(), present)
	if err != nil {
		return nil, err
	}
	if o.withShim {
		return gpus.ShimFlags(os, o.Request()), nil
	}
	edits, notes, err := ocispec.BuildEdits(os, devices, nil, o.Files(), p)
	var flags []string
	hints := len(edits.Env)
	if err == nil {
		if os == ocispec.Windows && (o.output == cli.Text || o.output == outputArgs) {
			// Windows PowerShell removes the quotation marks in it. It is a hint, and optional.
			edits.Env = slices.DeleteFunc(edits.Env, func(v string) bool { return strings.HasPrefix(v, ocispec.DevicesVariable+"=") })
		}
		flags, err = runflags.Flags(program, os, edits, o.Files())
	}
	switch {
	case errors.Is(err, runflags.ErrNoFlag):
		return nil, fmt.Errorf("%w; use the runtime shim, with --with-shim", err)
	case errors.Is(err, ocispec.ErrNotAssignable):
		return nil, fmt.Errorf("%w; select GPUs that %s containers can have, or set --container-os", err, os)
	}
	o.ReportMissing(stderr, notes)
	if len(edits.Env) < hints {
		fmt.Fprintf(stderr, "dxctl: left out: environment variable %s, which PowerShell cannot pass on\n", ocispec.DevicesVariable)
	}
	return flags, err
}

func printFlags(stdout io.Writer, output string, os ocispec.OS, flags []string) error {
	switch output {
	case cli.JSON, cli.YAML:
		return cli.PrintDocument(stdout, output, flags)
	case outputArgs:
		_, err := fmt.Fprintln(stdout, strings.Join(flags, "\n")) // None has a line break.
		return err
	}
	line, err := runflags.Line(os, flags)
	if err != nil {
		return fmt.Errorf("%w: use -o %s or -o %s", err, outputArgs, cli.JSON)
	}
	_, err = fmt.Fprintln(stdout, line)
	return err
}
