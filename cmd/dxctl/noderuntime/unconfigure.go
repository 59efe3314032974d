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

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
)

type unconfigureOptions struct{ restarter }

// NewUnconfigureCommand returns 'dxctl runtime unconfigure'.
func NewUnconfigureCommand() *cobra.Command {
	var o unconfigureOptions
	command := &cobra.Command{
		Use:   "unconfigure",
		Short: "Undo 'dxctl runtime configure'",
		Long: `Removes what 'dxctl runtime configure' added to containerd's configuration file. If nothing
else has changed the file, it is restored byte for byte.

Fails if a runtime handler still uses the shim. Do not remove the shim then.`,
		Example: `  dxctl runtime unconfigure --restart`,
		RunE:    func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	o.addRestartFlags(command)
	o.addDryRunFlag(command)
	o.addForceFlag(command)
	return command
}

func (o *unconfigureOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.CheckFlags(); err != nil {
		return err
	}
	c, err := readRecordedConfig(o.ConfigFile, o.stateDir)
	if err != nil {
		return err
	}
	running, _ := o.readRunning(ctx)
	release := o.Release(running)
	text, notes, err := containerdconfig.Undo(c.file.text, c.record.Edits)
	if len(c.record.Edits) == 0 {
		text, notes, err = containerdconfig.RemoveShim(c.file.text, release)
	}
	if err != nil {
		return withFileName(c.file.path, err)
	}
	for _, note := range notes {
		fmt.Fprintf(stderr, "note: %s: %s\n", o.ConfigFile, note)
	}
	if o.dryRun {
		_, err := stdout.Write(diff.Diff(o.ConfigFile, c.file.text, o.ConfigFile, text))
		return err
	}
	restored, err := containerdconfig.Read(text, release)
	if err != nil {
		return withFileName(o.ConfigFile, err)
	}
	remaining := handlersWithShim(restored.Handlers)
	changed := !bytes.Equal(c.file.text, text)
	// A handler that still uses the shim in the file does so after a restart, too.
	isStale := slices.ContainsFunc(handlersWithShim(running.Handlers), func(name string) bool { return !slices.Contains(remaining, name) })
	restart := o.allowRestart && (changed || c.record.RestartDue || isStale)
	if changed || restart {
		err = o.checkHolders(ctx, stderr)
	}
	before := c.record
	if err == nil && restart {
		err = o.prepareRestart(ctx, &c.record)
	}
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	message := "%s has no changes to undo\n"
	if changed {
		if err := c.restore(text); err != nil {
			return errors.Join(err, before.save(o.stateDir))
		}
		message = "restored %s\n"
	}
	fmt.Fprintf(stderr, message, o.ConfigFile)
	if restart {
		if err := o.restart(ctx, stderr, &c.record); err != nil {
			return err
		}
	} else if changed {
		fmt.Fprintln(stderr, restartNotice)
	}
	if len(remaining) > 0 {
		return fmt.Errorf("runtime handlers in %s still use the shim: %s: remove them or their runtime_path before you remove the shim", o.ConfigFile, strings.Join(remaining, ", "))
	}
	c.record.removeEdits()
	return c.record.save(o.stateDir)
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
