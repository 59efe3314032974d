package noderuntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
)

// NewUnconfigureCommand returns 'dxctl runtime unconfigure'.
func NewUnconfigureCommand() *cobra.Command {
	var r restarter
	command := &cobra.Command{
		Use:   "unconfigure",
		Short: "Undo 'dxctl runtime configure'",
		Long: `Removes what 'dxctl runtime configure' added to containerd's configuration file. If nothing
else has changed the file, it is restored byte for byte.

Fails if running containers hold GPUs, or if a runtime handler still uses the shim. Do not
remove the shim then.`,
		Example: `  dxctl runtime unconfigure --restart`,
		RunE: func(c *cobra.Command, _ []string) error {
			return r.unconfigure(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	r.addRestartFlags(command)
	r.addDryRunFlag(command)
	r.addForceFlag(command)
	return command
}

func (r *restarter) unconfigure(ctx context.Context, stdout, stderr io.Writer) error {
	if err := r.CheckFlags(); err != nil {
		return err
	}
	c, err := containerd.ReadRecordedConfig(r.ConfigFile, r.stateDir)
	if err != nil {
		return err
	}
	running, _ := r.readRunning(ctx)
	release := r.Release(running)
	text, notes, err := containerdconfig.Undo(c.File.Text, c.Record.Edits)
	if len(c.Record.Edits) == 0 {
		text, notes, err = containerdconfig.RemoveShim(c.File.Text, release)
	}
	if err != nil {
		return containerd.WithFileName(c.File.Path, err)
	}
	for _, note := range notes {
		fmt.Fprintf(stderr, "note: %s: %s\n", r.ConfigFile, note)
	}
	if r.dryRun {
		_, err := stdout.Write(diff.Diff(r.ConfigFile, c.File.Text, r.ConfigFile, text))
		return err
	}
	restored, err := containerdconfig.Read(text, release)
	if err != nil {
		return containerd.WithFileName(r.ConfigFile, err)
	}
	remaining := handlersWithShim(restored.Handlers)
	changed := !bytes.Equal(c.File.Text, text)
	// A handler that still uses the shim in the file does so after a restart, too.
	isStale := slices.ContainsFunc(handlersWithShim(running.Handlers), func(name string) bool { return !slices.Contains(remaining, name) })
	restart := r.allowRestart && (changed || c.Record.RestartDue || isStale)
	// The removal of a package runs this command also where there is nothing to undo, as with containerd 2.
	err = r.checkHolders(ctx, stderr, changed || restart)
	before := c.Record
	if err == nil && restart {
		err = r.prepareRestart(ctx, &c.Record)
	}
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	message := "%s has no changes to undo\n"
	if changed {
		if err := c.Restore(text); err != nil {
			return errors.Join(err, before.Save(r.stateDir))
		}
		message = "restored %s\n"
	}
	fmt.Fprintf(stderr, message, r.ConfigFile)
	if restart {
		if err := r.restart(ctx, stderr, &c.Record); err != nil {
			return err
		}
	} else if changed {
		fmt.Fprintln(stderr, restartNotice)
	}
	if len(remaining) > 0 {
		return fmt.Errorf("runtime handlers in %s still use the shim: %s: remove them or their runtime_path before you remove the shim", r.ConfigFile, strings.Join(remaining, ", "))
	}
	c.Record.RemoveEdits()
	return c.Record.Save(r.stateDir)
}

func handlersWithShim(handlers []containerdconfig.Handler) []string {
	var names []string
	for _, h := range handlers {
		if h.UsesShim() {
			names = append(names, h.Name)
		}
	}
	return names
}
