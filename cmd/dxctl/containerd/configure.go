package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/shimfile"
	"github.com/directx-nri/directx-nri/shim"
)

// ConfigureOptions are those of 'dxctl runtime configure'.
type ConfigureOptions struct {
	Restarter
	ShimDir       string
	NoShim        bool // handlers keep their shim
	handlers      []string
	addHandler    string
	noNRI         bool
	restartSpread time.Duration
}

// NewConfigureCommand returns 'dxctl runtime configure' for an operating system.
func NewConfigureCommand(goos string) *cobra.Command {
	return (&ConfigureOptions{Restarter: Restarter{Instance: Instance{OS: goos}}}).command()
}

func (o *ConfigureOptions) command() *cobra.Command {
	command := &cobra.Command{
		Use:   "configure",
		Short: "Make containerd use the runtime shim, and enable NRI",
		Long: `Makes the runtime handlers that can have GPUs run our shim (runtime_path) and pass on the
annotations directx.microsoft.com/*, and enables NRI on Linux. With --add-handler, adds a
handler instead, for pods with its RuntimeClass.

If containerd does not start with the new file, --restart restores the old one, and does
not try the same change again for an hour.

In a pod on Linux, use --restart-mode signal, with hostPID: true and appArmorProfile:
{type: Unconfined}. containerd's supervisor must start it again.`,
		Example: `  dxctl runtime configure --dry-run
  dxctl runtime configure --restart
  dxctl runtime configure --add-handler directx --restart > runtimeclass.yaml`,
		RunE: func(c *cobra.Command, _ []string) error { return o.Run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	o.AddFlags(command)
	o.addDryRunFlag(command)
	return command
}

// ShimDirUsage describes the flag --shim-dir.
const ShimDirUsage = "`DIRECTORY` of the runtime shim: that of containerd, or one on its PATH"

// AddFlags adds the flags of what is configured and how.
func (o *ConfigureOptions) AddFlags(command *cobra.Command) {
	flags := command.Flags()
	o.Instance.AddFlags(flags)
	flags.StringVar(&o.ShimDir, "shim-dir", paths.Default().ShimDir, ShimDirUsage)
	flags.StringArrayVar(&o.handlers, "handler", nil, "runtime handler to change, repeatable (default: each that can have GPUs, unless it runs another shim)")
	flags.StringVar(&o.addHandler, "add-handler", "", "add a runtime handler with this `NAME` instead of changing others, and print its RuntimeClass")
	flags.BoolVar(&o.NoShim, "no-shim", false, "do not use the runtime shim")
	if o.OS != "windows" {
		flags.BoolVar(&o.noNRI, "no-nri", false, "do not enable NRI")
	}
	o.AddRestartFlags(command)
	flags.DurationVar(&o.restartSpread, "restart-spread", 0, "wait a random part of this `TIME` before the first restart")
}

// Shim returns the path of the runtime shim.
func (o *ConfigureOptions) Shim() string { return filepath.Join(o.ShimDir, shimfile.FileName(o.OS)) }

// Check returns an error about flags that cannot be used.
func (o *ConfigureOptions) Check() error {
	switch {
	case o.NoShim && (o.noNRI || o.OS == "windows"):
		return cli.Usage("--no-shim and --no-nri leave nothing to configure")
	case o.NoShim && (len(o.handlers) > 0 || o.addHandler != ""):
		return cli.Usage("--no-shim excludes --handler and --add-handler")
	case !filepath.IsAbs(o.ShimDir):
		return cli.Usage("--shim-dir %q is not an absolute path", o.ShimDir)
	case o.addHandler != "" && len(validation.IsDNS1123Label(o.addHandler)) > 0:
		return cli.Usage("--add-handler %q: the name must consist of lowercase letters, digits and hyphens", o.addHandler)
	case o.dryRun && o.Restart:
		return cli.Usage("--dry-run excludes --restart")
	}
	return o.Restarter.Check()
}

// Run configures containerd: see the command's help.
func (o *ConfigureOptions) Run(ctx context.Context, stdout, stderr io.Writer) error {
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
	settings := containerdconfig.Settings{
		Node: o.Node(ctx), Shim: o.Shim(), RealShim: o.realShim(), Handlers: o.handlers, AddHandler: o.addHandler,
		NRI: !o.noNRI && o.OS != "windows",
	}
	if o.NoShim {
		settings.Shim = ""
	}
	result, err := containerdconfig.Configure(file.Text, settings)
	if err != nil {
		return locate(o.ConfigFile, err)
	}
	f, err := containerdconfig.Read(result.Text, settings.Node)
	if err != nil {
		return locate(o.ConfigFile, err)
	}
	if err := errors.Join(o.Imports(f, settings.Node)...); err != nil {
		return err
	}
	if settings.Shim != "" {
		if _, err := os.Stat(o.Shim()); err != nil {
			return fmt.Errorf("the shim does not exist, so no container would start: %w; run 'dxctl runtime install' first", err)
		}
	}
	for _, warning := range result.Warnings {
		fmt.Fprintf(stderr, "warning: %s\n", warning)
	}
	if o.dryRun {
		_, err := stdout.Write(diff.Diff(o.ConfigFile, file.Text, o.ConfigFile, result.Text))
		return err
	}
	return o.writeResult(ctx, stdout, stderr, file, result)
}

// realShim returns the path of the shim that ours runs, "" if it is unknown.
func (o *ConfigureOptions) realShim() string {
	p, err := policy.Read(o.StateDir)
	if err != nil {
		return ""
	}
	path, _ := shim.FindRealShim(o.Shim(), p.Shim.Runtime)
	return path
}

// writeResult writes the result, and restarts containerd if requested and necessary.
func (o *ConfigureOptions) writeResult(ctx context.Context, stdout, stderr io.Writer, file version, result containerdconfig.Result) error {
	changed := !bytes.Equal(file.Text, result.Text)
	restart := newPending(file, savedFile{Exists: true, Text: result.Text})
	restart.Shim, restart.Handlers = o.Shim(), result.Handlers
	if o.Restart && (changed || !o.hasLoaded(ctx, o.RestartLimit, restart.ready) || o.isOutdated(ctx, file.Change)) {
		restart.Attempt = hash(fmt.Appendf(nil, "%q %q %q %q %v", file.Path, file.Text, result.Text, o.service(), o.RestartLimit))
		err := o.CheckRestart(ctx)
		if err == nil {
			err = o.checkFailure(restart.Attempt)
		}
		spread := file.Change == nil && o.restartSpread > 0
		if err == nil && spread {
			err = o.spread(ctx, stderr)
		}
		if err != nil {
			return fmt.Errorf("%s was not changed: %w", file.Path, err)
		}
		if spread {
			// The programs that set up a node may have changed the file meanwhile.
			o.restartSpread = 0
			return o.Run(ctx, stdout, stderr)
		}
	} else {
		restart = nil
	}
	err := o.apply(ctx, stderr, restart, func() error {
		if !changed {
			fmt.Fprintf(stderr, "%s is already configured%s\n", o.ConfigFile, handlerList(result.Handlers))
			return nil
		}
		if err := o.configure(file, result); err != nil {
			return err
		}
		fmt.Fprintf(stderr, "configured %s%s\n", o.ConfigFile, handlerList(result.Handlers))
		return nil
	})
	if err != nil {
		return err
	}
	if changed && restart == nil {
		fmt.Fprintln(stderr, toLoad)
	}
	if o.addHandler != "" {
		_, err = io.WriteString(stdout, runtimeClass(o.addHandler, o.OS))
	}
	return err
}

// checkFailure returns an error if an attempt has failed a short time ago.
func (o *ConfigureOptions) checkFailure(attempt string) error {
	r, err := readRecord(o.StateDir)
	if err != nil {
		return err
	}
	return r.Failure.check(attempt, time.Now())
}

// handlerList returns the names of handlers, for a message.
func handlerList(handlers []string) string {
	if len(handlers) == 0 {
		return ""
	}
	return ": runtime handlers " + strings.Join(handlers, ", ")
}

// spread waits for a random part of the time over which a cluster's nodes restart
// containerd when they are first configured.
func (o *ConfigureOptions) spread(ctx context.Context, stderr io.Writer) error {
	pause := rand.N(o.restartSpread) //nolint:gosec // No secret.
	fmt.Fprintf(stderr, "restarting containerd in %v (--restart-spread)\n", pause.Round(time.Second))
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pause):
		return nil
	}
}

// runtimeClass returns the manifest of the RuntimeClass for a handler.
func runtimeClass(handler, os string) string {
	return fmt.Sprintf(`apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: %s
handler: %[1]s
scheduling:
  nodeSelector:
    kubernetes.io/os: %s
`, handler, os)
}
