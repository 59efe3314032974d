package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/specdiff"
	"directx-nri/internal/containerdconfig"
)

type unconfigureOptions struct {
	target
	dryRun bool
}

func newUnconfigureCommand(goos string) *cobra.Command {
	o := unconfigureOptions{target: target{os: goos}}
	command := &cobra.Command{
		Use:   "unconfigure",
		Short: "Take back what 'configure' has changed",
		Long: `Puts containerd's configuration file back to what it was, byte for byte. Where
somebody else has changed it since, those changes stay, and only ours are taken
back: a value of ours that was changed is left as it is, and told.

Without a record of what was changed, our shim's runtime_path and our annotation
patterns are removed, and it is told what cannot be known. It ends with status 1
when a runtime handler still goes through our shim: do not remove the shim then.`,
		Example: `  # put the file back, restart containerd, and go back if it does not come up
  dxctl runtime unconfigure --restart`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	o.addFlags(flags)
	flags.BoolVar(&o.dryRun, "dry-run", false, "print the change as a unified diff and write nothing")
	o.addChangeFlags(command)
	return command
}

func (o *unconfigureOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	file, err := openManaged(o.config, o.stateDir)
	if err != nil {
		return err
	}
	node := o.node(ctx)
	result, err := file.revert(node)
	if err != nil {
		return err
	}
	if o.dryRun {
		fmt.Fprintf(stdout, "%s", specdiff.Text(o.config, o.config, string(file.text), string(result.text)))
		return nil
	}
	for _, note := range result.notes {
		fmt.Fprintf(stderr, "note: %s: %s\n", o.config, note)
	}
	changed := file.exists != result.exists || !bytes.Equal(file.text, result.text)
	left, err := stillOurs(result, node)
	if err != nil {
		return locate(o.config, err)
	}
	// One that was broken off has left what it knew.
	brokenOff := !changed && file.journal != nil && o.isOutdated(ctx, file.path)
	restart := o.restart && (changed || brokenOff || o.isLoaded(ctx, left))
	if restart {
		if err := o.service().Check(ctx); err != nil {
			return fmt.Errorf("nothing is changed: %w", err)
		}
	}
	back, err := file.snapshot()
	if err != nil {
		return err
	}
	if err := file.store(result); err != nil {
		return err
	}
	if changed {
		fmt.Fprintf(stderr, "%s is as it was without us\n", o.config)
	} else {
		fmt.Fprintf(stderr, "%s has nothing of ours\n", o.config)
	}
	if restart {
		if err := o.restartOrPutBack(ctx, stderr, func([]containerdconfig.Handler) error { return nil }, back); err != nil {
			return err
		}
	} else if changed {
		fmt.Fprintf(stderr, "restart containerd to have it read the file\n")
	}
	if err := forgetAttempts(o.stateDir); err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%s still has our shim%s: remove runtime_path there by hand, and do not remove the shim before", o.config, list(left))
	}
	return file.forget()
}

// stillOurs returns the names of handlers that go through our shim.
func stillOurs(r reverted, node containerdconfig.Node) ([]string, error) {
	f, err := containerdconfig.Read(r.text, node)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, h := range f.Handlers {
		if h.Ours() {
			names = append(names, h.Name)
		}
	}
	return names, nil
}

// isLoaded tells whether the running containerd has handlers of ours, other than
// those that a restart would leave it.
func (o *unconfigureOptions) isLoaded(ctx context.Context, left []string) bool {
	ctx, cancel := context.WithTimeout(ctx, o.restartLimit)
	defer cancel()
	handlers, err := o.loaded(ctx)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(handlers, func(h containerdconfig.Handler) bool { return h.Ours() && !slices.Contains(left, h.Name) })
}
