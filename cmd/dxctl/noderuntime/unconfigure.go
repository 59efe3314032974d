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

type unconfigureOptions struct {
	restarter
	force bool
}

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
	addForceFlag(command.Flags(), &o.force)
	return command
}

func (o *unconfigureOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.CheckFlags(); err != nil {
		return err
	}
	file, err := readRecordedConfig(o.ConfigFile, o.stateDir)
	if err != nil {
		return err
	}
	running, _ := o.readRunning(ctx)
	release := o.Release(running)
	text, notes, err := file.textWithoutEdits(release)
	if err != nil {
		return err
	}
	for _, note := range notes {
		fmt.Fprintf(stderr, "note: %s: %s\n", o.ConfigFile, note)
	}
	if o.dryRun {
		_, err := stdout.Write(diff.Diff(o.ConfigFile, file.text, o.ConfigFile, text))
		return err
	}
	restored, err := containerdconfig.Read(text, release)
	if err != nil {
		return withFileName(o.ConfigFile, err)
	}
	remaining := handlersWithShim(restored.Handlers)
	changed := !bytes.Equal(file.text, text)
	// A handler that still uses the shim in the file does so after a restart, too.
	isStale := slices.ContainsFunc(handlersWithShim(running.Handlers), func(name string) bool { return !slices.Contains(remaining, name) })
	restart := o.allowRestart && (changed || file.RestartDue || isStale)
	if changed || restart {
		err = o.checkHolders(ctx, stderr, o.force)
	}
	wasDue := file.RestartDue
	if err == nil && restart {
		err = o.prepareRestart(ctx, &file.changeRecord)
	}
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	message := "%s has no changes to undo\n"
	if changed {
		if err := file.restore(text); err != nil {
			file.RestartDue = wasDue
			return errors.Join(err, file.save(o.stateDir))
		}
		message = "restored %s\n"
	}
	fmt.Fprintf(stderr, message, o.ConfigFile)
	switch {
	case restart:
		if err := o.restart(ctx, stderr, &file.changeRecord); err != nil {
			return err
		}
	case changed:
		fmt.Fprintln(stderr, restartNotice)
	}
	if len(remaining) > 0 {
		return fmt.Errorf("runtime handlers in %s still use the shim: %s: remove them or their runtime_path before you remove the shim", o.ConfigFile, strings.Join(remaining, ", "))
	}
	file.dropEdits(0)
	file.Failure = nil
	return file.save(o.stateDir)
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
