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
		Long: `Restores containerd's configuration file byte for byte, or removes our keys if others
changed the file since.

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
	if err := o.FinishPending(ctx, stderr); err != nil {
		return err
	}
	file, err := openFile(o.ConfigFile, o.StateDir)
	if err != nil {
		return err
	}
	node := o.Node(ctx)
	result, notes, err := file.reverted(node)
	if err != nil {
		return err
	}
	if o.dryRun {
		_, err := stdout.Write(diff.Diff(o.ConfigFile, file.Text, o.ConfigFile, result.Text))
		return err
	}
	for _, note := range notes {
		fmt.Fprintf(stderr, "note: %s: %s\n", o.ConfigFile, note)
	}
	left, err := containerdconfig.Read(result.Text, node)
	if err != nil {
		return locate(o.ConfigFile, err)
	}
	stillOurs := OurHandlers(left.Handlers)
	changed := file.Exists != result.Exists || !bytes.Equal(file.Text, result.Text)
	var restart *pendingRestart
	if o.Restart && (changed || o.isLoaded(ctx, stillOurs) || o.isOutdated(ctx, file.Change)) {
		restart = newPending(file, result)
	}
	if changed || restart != nil {
		err = o.CheckHolders(ctx, o.StateDir, stderr, o.force)
	}
	if err == nil && restart != nil {
		err = o.CheckRestart(ctx)
	}
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	err = o.apply(ctx, stderr, restart, func() error {
		if !changed {
			fmt.Fprintf(stderr, "%s has no changes to undo\n", o.ConfigFile)
			return nil
		}
		if err := o.write(version{result, file.Change}); err != nil {
			return err
		}
		fmt.Fprintf(stderr, "restored %s\n", o.ConfigFile)
		return nil
	})
	if err != nil {
		return err
	}
	if changed && restart == nil {
		fmt.Fprintln(stderr, toLoad)
	}
	if len(stillOurs) > 0 {
		return fmt.Errorf("runtime handlers in %s still use the shim%s: remove their runtime_path, and do not remove the shim before", o.ConfigFile, handlerList(stillOurs))
	}
	if file.Change == nil {
		return nil
	}
	return o.forget(file)
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
	ctx, cancel := context.WithTimeout(ctx, o.RestartLimit)
	defer cancel()
	loaded, err := containerdconfig.Load(ctx, o.CRISocket)
	return err == nil && slices.ContainsFunc(OurHandlers(loaded.Handlers), func(name string) bool { return !slices.Contains(expected, name) })
}
