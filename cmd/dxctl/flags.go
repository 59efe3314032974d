package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/frontend"
	"directx-nri/cmd/dxctl/quote"
	"directx-nri/discovery"
	"directx-nri/internal/cli"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

// Forms of the flags, beside JSON.
const (
	flagsText = "text"
	flagsArgs = "args"
)

type flagsOptions struct {
	byHand
	containerOS string
	shell       string
	output      string
}

func newFlagsCommand() *cobra.Command {
	o := flagsOptions{containerOS: containerOS()}
	command := &cobra.Command{
		Use:   "flags",
		Short: "Print the flags of ctr or nerdctl for a container with GPUs",
		Long: `Prints the flags of 'ctr run' or 'nerdctl run' that give GPUs to a container which
is run by hand, on a node without our runtime shim: the devices, and the files of
their drivers, as the shim would give them.

  -o text   one line, quoted for the shell that it is pasted into
  -o json   a list of texts, for programs
  -o args   a line for each argument, with nothing quoted: what bash's mapfile -t,
            xargs -d '\n' and PowerShell's arrays take

The shell is the one that dxctl was called from, and bash on anything but Windows;
flags for another node's Windows containers are quoted for PowerShell. What cannot
be written for a shell is refused; -o json and -o args can have it.

Where a program has no flag for something, dxctl says so, and how the runtime shim
is asked instead: --with-shim prints those flags at once.

The node's configuration counts as it does for the shim: runtimeFiles,
assignmentMode and visibilityHints. What assignmentMode auto stands for, this
machine's Windows says. The hint DIRECTX_DEVICES has quotation marks in it, and is
left out where a shell would not pass them on.

Files that a driver lists and that are not on disk are left out, and told on
standard error. The flags are those of ctr 1.7 and 2, and of nerdctl 1.7.`,
		Example: `  dxctl flags --for ctr --all
  dxctl flags --for nerdctl --index 0,1 --shell cmd

  # bash
  mapfile -t gpu < <(dxctl flags --for ctr --index 0 -o args)
  ctr run --rm "${gpu[@]}" IMAGE ID

  # PowerShell
  $gpu = dxctl flags --for ctr --index 0 -o args
  ctr run --rm @gpu IMAGE ID

  # a node with the runtime shim
  dxctl flags --for ctr --index 0 --with-shim

  # another node's GPUs
  dxctl flags --for ctr --all --inventory node7.yaml --container-os windows --assume-files`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	o.addFlags(command)
	o.nodeFiles.addFlags(flags)
	flags.StringVar(&o.containerOS, "container-os", o.containerOS, "the container's operating system: windows or linux")
	flags.StringVar(&o.shell, "shell", "", "shell that the text is quoted for: cmd, powershell or bash (default: the one that this is called from)")
	flags.StringVarP(&o.output, "output", "o", flagsText, "form of the output: text, json or args")
	completeValues(command, "container-os", string(ocispec.Windows), string(ocispec.Linux))
	completeValues(command, "shell", quote.Names()...)
	completeValues(command, "output", flagsText, outputJSON, flagsArgs)
	return command
}

// containerOS is the operating system of containers that run here.
func containerOS() string {
	if runtime.GOOS == string(ocispec.Windows) {
		return string(ocispec.Windows)
	}
	return string(ocispec.Linux)
}

func (o *flagsOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	os, err := ocispec.ParseOS(o.containerOS)
	if err != nil {
		return cli.Usage("--container-os: %w", err)
	}
	shell := callingShell()
	if os == ocispec.Windows && runtime.GOOS != string(ocispec.Windows) {
		shell = quote.PowerShell
	}
	if o.shell != "" {
		if shell, err = quote.Parse(o.shell); err != nil {
			return cli.Usage("--shell: %w", err)
		}
	}
	if o.output != flagsText && o.output != outputJSON && o.output != flagsArgs {
		return cli.Usage("--output %q is none of %s, %s, %s", o.output, flagsText, outputJSON, flagsArgs)
	}
	flags, err := o.flags(ctx, os, shell, stderr)
	if err != nil {
		return err
	}
	flags = withoutUnsayable(flags, o.output, os, shell, stderr)
	return printFlags(stdout, o.output, shell, flags)
}

// withoutUnsayable returns flags without the variable that has quotation marks in it
// where these could not come through: programs do without it. Of it stderr is told.
func withoutUnsayable(flags []string, output string, os ocispec.OS, shell quote.Shell, stderr io.Writer) []string {
	without, there := frontend.WithoutVariable(flags, ocispec.DevicesVariable)
	if !there || output == outputJSON {
		return flags
	}
	if _, err := shell.Line(flags); output == flagsText && err == nil || output == flagsArgs && os != ocispec.Windows {
		return flags
	}
	fmt.Fprintf(stderr, "dxctl: left out: the variable %s, for Windows PowerShell does not pass on the quotation marks in it; -o %s and --shell %s have it\n",
		ocispec.DevicesVariable, outputJSON, quote.Cmd)
	return without
}

func printFlags(stdout io.Writer, output string, shell quote.Shell, flags []string) error {
	switch output {
	case flagsText:
		line, err := shell.Line(flags)
		if err != nil {
			return fmt.Errorf("%w; -o %s and -o %s have it", err, flagsArgs, outputJSON)
		}
		_, err = fmt.Fprintln(stdout, line)
		return err
	case flagsArgs:
		for _, flag := range flags {
			if strings.ContainsAny(flag, "\r\n") {
				return fmt.Errorf("%q is more than one line; -o %s has it", flag, outputJSON)
			}
		}
		_, err := fmt.Fprintln(stdout, strings.Join(flags, "\n"))
		return err
	}
	for _, flag := range flags {
		if !utf8.ValidString(flag) {
			return fmt.Errorf("%q is not UTF-8 and cannot be in JSON; -o %s has it", flag, flagsArgs)
		}
	}
	return printAs(stdout, outputJSON, flags)
}

// byHand is a container that a person runs with GPUs.
type byHand struct {
	gpuSource
	selection
	nodeFiles
	program  string
	withShim bool
}

func (b *byHand) addFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&b.program, "for", string(frontend.Ctr), "`PROGRAM` that runs the container: ctr or nerdctl")
	b.selection.addFlags(flags)
	flags.BoolVar(&b.withShim, "with-shim", false, "ask the runtime shim for the GPUs: the node must have it, 'dxctl runtime install'")
	b.gpuSource.addFlags(flags)
	completeValues(command, "for", frontend.Names()...)
}

// flags returns the program's flags for the selected GPUs, and tells stderr of
// files that are left out. What it advises to type is for shell.
func (b *byHand) flags(ctx context.Context, os ocispec.OS, shell quote.Shell, stderr io.Writer) ([]string, error) {
	program, err := frontend.Parse(b.program)
	if err != nil {
		return nil, cli.Usage("--for: %w", err)
	}
	chosen, policy, err := b.chosen(ctx, os, stderr)
	if err != nil {
		return nil, err
	}
	if b.withShim {
		return frontend.WithShim(b.request()), nil
	}
	flags, notes, err := frontend.Flags(program, os, chosen, b.files(), policy)
	if errors.Is(err, frontend.ErrNoFlag) {
		line, quoteErr := shell.Line(frontend.WithShim(b.request()))
		if quoteErr != nil {
			return nil, fmt.Errorf("%w; the runtime shim can do it: add --with-shim", err)
		}
		return nil, fmt.Errorf("%w; the runtime shim can do it: add --with-shim, or write %s run %s", err, program, line)
	}
	if errors.Is(err, ocispec.ErrNotAssignable) {
		return nil, fmt.Errorf("%w; name GPUs that %s containers can have", err, os)
	}
	if err != nil {
		return nil, err
	}
	tellNotes(stderr, notes)
	return flags, nil
}

// chosen returns the selected GPUs, and the node's policy for containers of os.
func (b *byHand) chosen(ctx context.Context, os ocispec.OS, stderr io.Writer) ([]discovery.Device, decision.Policy, error) {
	if b.empty() {
		return nil, decision.Policy{}, cli.Usage("no GPU is named: say --all, --index, --luid or --path; 'dxctl devices' lists them")
	}
	if err := cmp.Or(b.selection.check(), b.nodeFiles.check()); err != nil {
		return nil, decision.Policy{}, err
	}
	c, source, err := b.node(stderr)
	if err != nil {
		return nil, decision.Policy{}, err
	}
	policy := policyOf(c, os)
	present, err := discovery.ByClass(source, func() bool { return policy.ByClass }).Devices(ctx)
	if err != nil {
		return nil, decision.Policy{}, err
	}
	chosen, err := b.choose(present)
	return chosen, policy, err
}

// tellNotes tells of files that a container does without.
func tellNotes(stderr io.Writer, notes []ocispec.Note) {
	for _, note := range notes {
		if note.Minor {
			continue
		}
		fmt.Fprintf(stderr, "dxctl: left out: %s\n", note)
	}
}
