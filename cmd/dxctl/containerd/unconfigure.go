package containerd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
)

type unconfigureOptions struct {
	Restarter
	force bool
}

// NewUnconfigureCommand returns 'dxctl runtime unconfigure' for an operating system.
func NewUnconfigureCommand(goos string) *cobra.Command {
	return (&unconfigureOptions{Restarter: Restarter{Instance: Instance{OS: goos}}}).command()
}

func (o *unconfigureOptions) command() *cobra.Command {
	command := &cobra.Command{
		Use:   "unconfigure",
		Short: "Undo 'dxctl runtime configure'",
		Long: `Removes what 'dxctl runtime configure' added to containerd's configuration file. Without
changes by others, the file is then byte for byte what it was.

Exit status: 1 if a runtime handler still uses the shim: do not remove the shim then.`,
		Example: `  dxctl runtime unconfigure --restart`,
		RunE:    func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	o.AddFlags(flags)
	o.addDryRunFlag(command)
	AddForceFlag(flags, &o.force)
	o.AddRestartFlags(command)
	return command
}

func (o *unconfigureOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.Check(); err != nil {
		return err
	}
	c, err := openChange(o.ConfigFile, o.StateDir)
	if err != nil {
		return err
	}
	target := o.Target(ctx)
	text, notes, err := c.textWithoutEdits(target)
	if err != nil {
		return err
	}
	if o.dryRun {
		_, err := stdout.Write(diff.Diff(o.ConfigFile, c.text, o.ConfigFile, text))
		return err
	}
	for _, note := range notes {
		fmt.Fprintf(stderr, "note: %s: %s\n", o.ConfigFile, note)
	}
	left, err := containerdconfig.Read(text, target)
	if err != nil {
		return locate(o.ConfigFile, err)
	}
	stillOurs := OurHandlers(left.Handlers)
	changed := !bytes.Equal(c.text, text)
	restart := o.AllowRestart && (changed || c.RestartDue || o.isLoaded(ctx, stillOurs))
	if changed || restart {
		err = o.CheckHolders(ctx, o.StateDir, stderr, o.force)
	}
	if err == nil && restart {
		err = o.CheckRestart(ctx)
	}
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	write := func() (bool, error) {
		if !changed {
			fmt.Fprintf(stderr, "%s has no changes to undo\n", o.ConfigFile)
			return false, nil
		}
		if err := c.restore(text); err != nil {
			return false, err
		}
		fmt.Fprintf(stderr, "restored %s\n", o.ConfigFile)
		return true, nil
	}
	if restart {
		err = o.RestartAfter(ctx, stderr, write)
	} else {
		_, err = write()
	}
	if err != nil {
		return err
	}
	if changed && !restart {
		fmt.Fprintln(stderr, restartNotice)
	}
	if len(stillOurs) > 0 {
		return fmt.Errorf("runtime handlers in %s still use the shim%s: remove their runtime_path, and do not remove the shim before", o.ConfigFile, handlerList(stillOurs))
	}
	if c.changeRecord, err = readRecord(o.StateDir); err != nil {
		return err
	}
	c.dropEdits(0)
	c.Failure = nil
	return c.save(o.StateDir)
}

// OurHandlers returns the names of handlers that use our shim.
func OurHandlers(handlers []containerdconfig.Handler) []string {
	var names []string
	for _, h := range handlers {
		if h.Ours() {
			names = append(names, h.Name)
		}
	}
	return names
}

// isLoaded reports whether handlers of the running containerd use our shim, other
// than those that do after a restart.
func (o *unconfigureOptions) isLoaded(ctx context.Context, expected []string) bool {
	ctx, cancel := context.WithTimeout(ctx, o.RestartTimeout)
	defer cancel()
	running, err := containerdconfig.Load(ctx, o.CRISocket)
	return err == nil && slices.ContainsFunc(OurHandlers(running.Handlers), func(name string) bool { return !slices.Contains(expected, name) })
}
