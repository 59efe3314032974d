// Package noderuntime has the commands that install the runtime shim, configure containerd for it,
// and undo both.
package noderuntime

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/shim/realshim"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

type configureOptions struct {
	restarter
	shimDir       string
	noShim        bool // leave the handlers unchanged
	handlers      []string
	addHandler    string
	noNRI         bool
	restartSpread time.Duration
}

// NewConfigureCommand returns 'dxctl runtime configure'.
func NewConfigureCommand() *cobra.Command {
	var o configureOptions
	command := &cobra.Command{
		Use:   "configure",
		Short: "Make containerd use the runtime shim, and enable NRI",
		Long: `Makes the runtime handlers that can have GPUs run the runtime shim (runtime_path) and pass on the
annotations directx.microsoft.com/*, and enables NRI on Linux. With --add-handler, adds a
handler instead, for pods with its RuntimeClass.

If containerd does not start with the change, --restart undoes it, and does not try the same
change again for an hour.

In a pod on Linux, use --restart-mode signal, with hostPID: true and appArmorProfile:
{type: Unconfined}. containerd's supervisor must start it again.`,
		Example: `  dxctl runtime configure --dry-run
  dxctl runtime configure --restart
  dxctl runtime configure --add-handler directx --restart > runtimeclass.yaml`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	o.AddFlags(command)
	o.addDryRunFlag(command)
	return command
}

// AddFlags adds the flags, except --dry-run.
func (o *configureOptions) AddFlags(command *cobra.Command) {
	o.addRestartFlags(command)
	flags := command.Flags()
	containerd.AddShimDirFlag(flags, &o.shimDir)
	flags.StringArrayVar(&o.handlers, "handler", nil, "runtime handler to change, repeatable (default: all that can have GPUs and run no other shim)")
	flags.StringVar(&o.addHandler, "add-handler", "", "add a runtime handler with this `NAME` instead of changing others, and print its RuntimeClass")
	flags.BoolVar(&o.noShim, "no-shim", false, "do not use the runtime shim")
	if o.OS != "windows" {
		flags.BoolVar(&o.noNRI, "no-nri", false, "do not enable NRI")
	}
	flags.DurationVar(&o.restartSpread, "restart-spread", 0, "wait a random part of this `TIME` before the first restart")
}

func (o *configureOptions) shim() string { return filepath.Join(o.shimDir, shimfile.FileName()) }

// CheckFlags returns an error about flags that cannot be used.
func (o *configureOptions) CheckFlags() error {
	switch {
	case o.noShim && (o.noNRI || o.OS == "windows"):
		return cli.UsageError("--no-shim and --no-nri leave nothing to configure")
	case o.noShim && (len(o.handlers) > 0 || o.addHandler != ""):
		return cli.UsageError("--no-shim excludes --handler and --add-handler")
	case o.addHandler != "" && len(validation.IsDNS1123Label(o.addHandler)) > 0:
		return cli.UsageError("--add-handler %q: the name must consist of lowercase letters, digits and hyphens", o.addHandler)
	}
	return errors.Join(containerd.CheckShimDir(o.shimDir), o.restarter.CheckFlags())
}

// plannedChange is a change of containerd's configuration that has not been made yet.
type plannedChange struct {
	containerd.RecordedConfig
	new          containerdconfig.Result
	needsRestart bool   // The running containerd has not loaded the new configuration, or a restart is due.
	attempt      string // see [containerd.RestartError]
}

func (o *configureOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.CheckFlags(); err != nil {
		return err
	}
	c, err := o.plan(ctx)
	if err == nil && o.allowRestart && c.needsRestart && len(c.Record.Edits) == 0 && o.restartSpread > 0 {
		if err = o.waitBeforeRestart(ctx, stderr); err == nil {
			c, err = o.plan(ctx) // The programs that set up a node may have changed the file meanwhile.
		}
	}
	if err != nil {
		return err
	}
	for _, warning := range c.new.Warnings {
		fmt.Fprintf(stderr, "warning: %s\n", warning)
	}
	if o.dryRun {
		_, err := stdout.Write(diff.Diff(o.ConfigFile, c.File.Text, o.ConfigFile, c.new.Text))
		return err
	}
	if err := o.write(stderr, &c); err != nil {
		return err
	}
	switch {
	case c.needsRestart && o.allowRestart:
		if err := o.restartOrUndo(ctx, stderr, c); err != nil {
			return err
		}
	case c.needsRestart:
		fmt.Fprintln(stderr, restartNotice)
	}
	if o.addHandler != "" {
		_, err = fmt.Fprintf(stdout, runtimeClass, o.addHandler, o.OS)
	}
	return err
}

// plan returns the change of the current configuration, and changes nothing.
func (o *configureOptions) plan(ctx context.Context) (c plannedChange, err error) {
	if c.RecordedConfig, err = containerd.ReadRecordedConfig(o.ConfigFile, o.stateDir); err != nil {
		return c, err
	}
	running, runningErr := o.readRunning(ctx)
	release := o.Release(running)
	if c.Record.Pending > 0 && runningErr == nil && isFileLoaded(c.File.Text, release, running.Handlers) {
		c.Record.ConfirmLoaded()
	}
	settings, err := o.settings(release)
	if err != nil {
		return c, err
	}
	if c.new, err = containerdconfig.Configure(c.File.Text, settings); err != nil {
		return c, containerd.WithFileName(o.ConfigFile, err)
	}
	config, err := containerdconfig.Read(c.new.Text, release)
	if err != nil {
		return c, containerd.WithFileName(o.ConfigFile, err)
	}
	if err := errors.Join(o.CheckImports(&config, release)...); err != nil {
		return c, err
	}
	c.needsRestart = len(c.new.Edits) > 0 || c.Record.Pending > 0 || c.Record.RestartDue ||
		runningErr != nil || checkHandlers(running.Handlers, c.new.Handlers, o.shim()) != nil
	if !c.needsRestart || !o.allowRestart {
		return c, nil
	}
	c.attempt = fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%q %q %q %v", c.File.Path, c.new.Text, o.service(ctx), o.restartTimeout)))
	if err = o.service(ctx).Check(ctx); err == nil {
		err = c.Record.Failure.CheckRetry(c.attempt, time.Now())
	}
	if err != nil {
		err = fmt.Errorf("%s was not changed: %w", c.File.Path, err)
	}
	return c, err
}

func (o *configureOptions) settings(release containerdconfig.Release) (s containerdconfig.Settings, err error) {
	s = containerdconfig.Settings{Release: release, Handlers: o.handlers, AddHandler: o.addHandler, NRI: !o.noNRI && o.OS != "windows"}
	if o.noShim {
		return s, nil
	}
	if _, err := os.Stat(o.shim()); err != nil {
		return s, errlog.WithRemedy(fmt.Errorf("the shim does not exist, so no container would start: %w", err),
			"run 'dxctl runtime install' first")
	}
	realShim, err := policy.ReadRealShim(o.stateDir)
	s.Shim = o.shim()
	s.RealShim, _ = realshim.Find(s.Shim, realShim) // The path is enough to compare it.
	return s, err
}

// write records the change and writes the file. If this run is killed, the next one continues it.
func (o *configureOptions) write(stderr io.Writer, c *plannedChange) error {
	changed, restart := len(c.new.Edits) > 0, o.allowRestart && c.needsRestart
	message := "%s is already configured%s\n"
	if changed {
		c.Record.AddEdits(c.File, c.new.Edits)
		message = "configured %s%s\n"
	}
	if restart {
		c.Record.BeginRestart()
	}
	if changed || restart {
		if err := c.Record.Save(o.stateDir); err != nil {
			return err
		}
	}
	if changed {
		if err := c.File.Write(c.new.Text); err != nil {
			return err
		}
	}
	handlers := ""
	if len(c.new.Handlers) > 0 {
		handlers = ": runtime handlers " + strings.Join(c.new.Handlers, ", ")
	}
	fmt.Fprintf(stderr, message, o.ConfigFile, handlers)
	return nil
}

// waitBeforeRestart waits for a random part of --restart-spread, so that the nodes of a cluster do
// not restart containerd all at once.
func (o *configureOptions) waitBeforeRestart(ctx context.Context, stderr io.Writer) error {
	pause := rand.N(o.restartSpread) //nolint:gosec // No secret.
	fmt.Fprintf(stderr, "restarting containerd in %v (--restart-spread)\n", pause.Round(time.Second))
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s was not changed: %w", o.ConfigFile, context.Cause(ctx))
	case <-time.After(pause):
	}
	return nil
}

// runtimeClass is the RuntimeClass of a handler on nodes with an operating system.
const runtimeClass = `apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: %s
handler: %[1]s
scheduling:
  nodeSelector:
    kubernetes.io/os: %s
`

// checkHandlers returns an error unless the named handlers are loaded and use the shim.
func checkHandlers(loaded []containerdconfig.Handler, names []string, shim string) error {
	for _, name := range names {
		usesShim := func(h containerdconfig.Handler) bool { return h.Name == name && h.RuntimePath == shim }
		if !slices.ContainsFunc(loaded, usesShim) {
			return fmt.Errorf("runtime handler %s is not loaded with runtime_path %q", name, shim)
		}
	}
	return nil
}

// isFileLoaded reports whether containerd has loaded the handlers that use the shim as they are in the
// file. It returns false if the file has none, because then it is unknown whether it is loaded.
func isFileLoaded(text []byte, release containerdconfig.Release, loaded []containerdconfig.Handler) bool {
	config, _ := containerdconfig.Read(text, release) // The caller returns the error.
	isLoaded := func(h containerdconfig.Handler) bool {
		return slices.ContainsFunc(loaded, func(l containerdconfig.Handler) bool {
			return l.Name == h.Name && l.RuntimePath == h.RuntimePath &&
				slices.Equal(l.PodAnnotations, h.PodAnnotations) && slices.Equal(l.ContainerAnnotations, h.ContainerAnnotations)
		})
	}
	ours := slices.DeleteFunc(config.Handlers, func(h containerdconfig.Handler) bool { return !h.UsesShim() })
	return len(ours) > 0 && len(slices.DeleteFunc(ours, isLoaded)) == 0
}

// restartOrUndo restarts containerd after a change of its configuration. If containerd does not load
// the change, restartOrUndo undoes the pending edits and restarts containerd again. The error
// describes both restarts.
func (o *configureOptions) restartOrUndo(ctx context.Context, out io.Writer, c plannedChange) error {
	cause := o.restartAndCheck(ctx, func(loaded []containerdconfig.Handler) error {
		return checkHandlers(loaded, c.new.Handlers, o.shim())
	})
	if cause == nil {
		fmt.Fprintln(out, "restarted containerd")
		c.Record.EndRestart()
		return c.Record.Save(o.stateDir)
	}
	canceled := ctx.Err() != nil
	// Continue after a signal, too: otherwise, the node would have no containerd.
	ctx = context.WithoutCancel(ctx)
	if c.Record.Pending > 0 {
		if err := o.undoPending(&c.RecordedConfig); err != nil {
			cause = fmt.Errorf("%w; %s was not restored: %w", cause, c.File.Path, err)
		} else {
			cause = fmt.Errorf("%w; %s was restored", cause, c.File.Path)
		}
		// On Windows, a pod's process has 5 s to end. Another restart could be killed while the
		// kubelet is stopped, and then nothing would run dxctl again. So the next run restarts it.
		// https://github.com/microsoft/hcsshim/blob/v0.14.1/internal/jobcontainers/jobcontainer.go
		if canceled && o.OS == "windows" && o.isRunning(ctx) {
			cause = fmt.Errorf("%w; run the command again to restart containerd", cause)
		} else if err := o.restartAndCheck(ctx, nil); err != nil {
			cause = fmt.Errorf("%w; %w", cause, err)
		} else {
			cause = fmt.Errorf("%w, and containerd runs with it", cause)
			if c.Record.Pending == 0 {
				c.Record.EndRestart()
			}
		}
	}
	// The failure is recorded last, so that a run that is killed before is continued at once.
	if !canceled { // After a signal, the file may not be the cause.
		c.Record.FailRestart(c.attempt, cause)
	}
	if err := c.Record.Save(o.stateDir); err != nil {
		return fmt.Errorf("%w; %w", cause, err)
	}
	return cause
}

// undoPending undoes the edits with which containerd has not started. It reads the file again,
// because another program may have changed it.
func (o *configureOptions) undoPending(c *containerd.RecordedConfig) error {
	file, err := containerd.ReadConfigFile(c.File.Path)
	if err != nil {
		return err
	}
	c.File = file
	text, _, err := containerdconfig.Undo(c.File.Text, c.Record.PendingEdits())
	if err == nil {
		err = c.Restore(text)
	}
	if err != nil {
		return err
	}
	c.Record.RemovePending()
	return c.Record.Save(o.stateDir)
}

func (o *configureOptions) isRunning(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := o.readRunning(ctx)
	return err == nil
}
