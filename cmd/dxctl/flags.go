package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
	"github.com/directx-nri/directx-nri/ocispec/runflags"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

type flagsOptions struct {
	gpuSelection
	program, containerOS string
	withShim, runs       bool
}

// newFlagsCommand returns 'dxctl flags'.
func newFlagsCommand() *cobra.Command {
	o := flagsOptions{containerOS: runtime.GOOS}
	command := &cobra.Command{
		Use:   "flags [flags] [--run -- ARGUMENT...]",
		Short: "Print flags of ctr or nerdctl for a container with GPUs, or start it",
		Long: `Prints flags of 'ctr run' or 'nerdctl run' (1.7 or later; 2.0 with --with-shim) for GPUs
and their driver files, with an argument on each line. With --run, starts the container:
runs the program's 'run --rm' with the flags and the other arguments.`,
		Example: `  dxctl flags --gpus 0 --run -- --tty IMAGE ID cmd.exe

  # bash
  mapfile -t gpu < <(dxctl flags --gpus 0)
  ctr run --rm "${gpu[@]}" IMAGE ID

  # PowerShell
  $gpu = dxctl flags --gpus 0
  ctr run --rm @gpu IMAGE ID`,
		Args: cobra.ArbitraryArgs,
		RunE: o.run,
	}
	flags := command.Flags()
	flags.SetInterspersed(false) // The container's command has flags of its own.
	cli.AddChoice(command, &o.program, "for", "", "program that runs the container", runflags.Ctr, runflags.Nerdctl)
	o.AddRequestFlag(flags, "GPUs of the container, required")
	_ = command.MarkFlagRequired("gpus") // It exists.
	flags.BoolVar(&o.withShim, "with-shim", false, "print flags that use the runtime shim")
	cli.AddChoice(command, &o.containerOS, "container-os", "", "the container's operating system", "windows", "linux")
	flags.BoolVar(&o.runs, "run", false, "start the container; its image and the rest of the command line follow")
	o.AddFlags(command)
	o.AddFileFlags(command)
	return command
}

func (o *flagsOptions) run(c *cobra.Command, args []string) error {
	if o.runs != (len(args) > 0) {
		return cli.UsageError("--run requires the container's image, and other arguments require --run")
	}
	flags, err := o.flags(c.Context(), c.ErrOrStderr())
	if err != nil {
		return err
	}
	if !o.runs {
		_, err := fmt.Fprintln(c.OutOrStdout(), strings.Join(flags, "\n")) // None has a line break.
		return err
	}
	// A terminal sends its signals to the program, too, which ends the container.
	ctx := context.WithoutCancel(c.Context())
	program := exec.CommandContext(ctx, findProgram(o.program), slices.Concat([]string{"run", "--rm"}, flags, args)...)
	program.Stdin, program.Stdout, program.Stderr = c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr()
	if err := program.Run(); err != nil {
		return fmt.Errorf("%s: %w", o.program, err)
	}
	return nil
}

func (o *flagsOptions) flags(ctx context.Context, stderr io.Writer) ([]string, error) {
	present, p, err := o.Devices(ctx, stderr, o.containerOS)
	if err != nil {
		return nil, err
	}
	devices, err := decision.Select(o.Request, present)
	if err != nil {
		return nil, err
	}
	if o.withShim {
		return shimFlags(o.containerOS, o.Request), nil
	}
	edits, notes, err := gpuedits.Build(o.containerOS, devices, nil, o.Files(), p)
	switch {
	case errors.Is(err, gpuedits.ErrNotAssignable):
		other := map[string]string{"linux": "windows", "windows": "linux"}[o.containerOS]
		return nil, errlog.WithRemedy(err, "select GPUs that "+o.containerOS+" containers can have, or add --container-os "+other)
	case err != nil:
		return nil, err
	}
	all := len(edits.Env)
	if o.containerOS == "windows" && !o.runs {
		// Windows PowerShell removes the quotation marks in the hint, which is optional.
		edits.Env = slices.DeleteFunc(edits.Env, func(variable string) bool {
			return strings.HasPrefix(variable, gpuedits.DevicesVariable+"=")
		})
	}
	flags, err := runflags.Flags(o.program, o.containerOS, edits, o.Files().Resolve)
	switch {
	case errors.Is(err, runflags.ErrNoFlag):
		return nil, errlog.WithRemedy(err, "use the runtime shim, with --with-shim")
	case err != nil:
		return nil, err
	}
	o.ReportSkipped(stderr, notes)
	if len(edits.Env) < all {
		fmt.Fprintf(stderr, "dxctl: left out: environment variable %s, which PowerShell cannot pass on\n", gpuedits.DevicesVariable)
	}
	if _, ok := ocispec.LookupEnv(o.containerOS, edits.Env, "LD_LIBRARY_PATH"); ok {
		fmt.Fprintln(stderr, "dxctl: LD_LIBRARY_PATH replaces that of the image; with --with-shim, directories are added to it")
	}
	return flags, nil
}

// shimFlags returns the flags of ctr and nerdctl that run a container with the runtime shim and
// request GPUs. Images cannot set annotations. On Windows, the shim is in the place of runhcs, and ctr 1.7 drops
// annotations.
func shimFlags(containerOS, request string) []string {
	if containerOS == "windows" {
		return []string{"--env", decision.VisibleVariable + "=" + request}
	}
	return []string{"--runtime", shimfile.RuntimeName, "--annotation", decision.VisibleAnnotation + "=" + request}
}
