package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/printer"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/shimfile"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/shim"
)

type configureOptions struct {
	target
	shim          string
	handlers      []string
	addHandler    string
	noShim, noNRI bool
	dryRun        bool
	fileVersion   int
	restartSpread time.Duration
}

func newConfigureCommand(goos string) *cobra.Command {
	return (&configureOptions{target: target{os: goos}}).command(goos)
}

func (o *configureOptions) command(goos string) *cobra.Command {
	command := &cobra.Command{
		Use:   "configure",
		Short: "Make containerd use the runtime shim, and enable NRI",
		Long: `Changes containerd's configuration file: runtime handlers that can have GPUs run our
shim (runtime_path) and pass on the annotations directx.microsoft.com/*. On Linux,
NRI is enabled. With --add-handler, a handler is added instead, for pods with its
RuntimeClass.

With --restart, containerd is restarted if necessary. If it does not start, the old
file is restored, and the same change is not tried again for an hour.

In a pod on Linux, use --restart-mode signal: containerd's supervisor must start it again.
This needs hostPID: true and appArmorProfile: {type: Unconfined}.
`,
		Example: `  dxctl runtime configure --dry-run
  dxctl runtime configure --restart
  dxctl runtime configure --add-handler directx --restart > runtimeclass.yaml`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	o.addFlags(flags)
	flags.StringVar(&o.shim, "shim", filepath.Join(paths.Default().ShimDir, shimfile.FileName(goos)), "absolute `PATH` of the runtime shim")
	flags.StringArrayVar(&o.handlers, "handler", nil, "runtime handler to change, repeatable (default: each that can have GPUs, unless it runs another shim)")
	flags.StringVar(&o.addHandler, "add-handler", "", "add a runtime handler with this `NAME` instead of changing others, and print its RuntimeClass")
	flags.Lookup("add-handler").NoOptDefVal = "directx"
	flags.BoolVar(&o.noShim, "no-shim", false, "do not change runtime handlers")
	if goos != "windows" {
		flags.BoolVar(&o.noNRI, "no-nri", false, "do not enable NRI")
	}
	flags.IntVar(&o.fileVersion, "file-version", 2, "format version of a new file: 2, 3 or 4")
	flags.BoolVar(&o.dryRun, "dry-run", false, "print the change as a unified diff, and change nothing")
	o.addChangeFlags(command)
	flags.DurationVar(&o.restartSpread, "restart-spread", 0, "wait a random part of this `TIME` before the first restart, to spread a cluster's restarts")
	return command
}

func (o *configureOptions) check() error {
	absolute := path.IsAbs(o.shim)
	if o.os == "windows" {
		absolute = winpath.IsAbs(o.shim)
	}
	switch {
	case o.noShim && (o.noNRI || o.os == "windows"):
		return cli.Usage("--no-shim and --no-nri leave nothing to configure")
	case o.noShim && (len(o.handlers) > 0 || o.addHandler != ""):
		return cli.Usage("--no-shim excludes --handler and --add-handler")
	case !absolute:
		return cli.Usage("--shim %q is not an absolute path", o.shim)
	case !shimfile.IsShim(o.shim):
		return cli.Usage("--shim %q: the file must be named %s", o.shim, shimfile.FileName(o.os))
	case o.addHandler != "" && !isLabel(o.addHandler):
		return cli.Usage("--add-handler %q: the name must consist of lowercase letters, digits and hyphens", o.addHandler)
	case o.fileVersion < 2 || o.fileVersion > 4:
		return cli.Usage("--file-version %d: want 2, 3 or 4", o.fileVersion)
	case o.dryRun && o.restart:
		return cli.Usage("--dry-run excludes --restart")
	}
	return o.target.check()
}

// isLabel reports whether name can be a runtime handler in Kubernetes.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-label-names
func isLabel(name string) bool {
	const longest = 63
	return len(name) <= longest && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && strings.Trim(name, "-") == name
}

func (o *configureOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	if !o.dryRun {
		if err := o.finishPending(ctx, stderr); err != nil {
			return err
		}
	}
	file, err := openManaged(o.config, o.stateDir)
	if err != nil {
		return err
	}
	file.step = o.at
	settings := containerdconfig.Settings{
		Node: o.node(ctx), Shim: o.shim, RealShim: o.realShim(), Handlers: o.handlers, AddHandler: o.addHandler,
		NRI: !o.noNRI && o.os != "windows", Version: o.fileVersion,
	}
	if o.noShim {
		settings.Shim = ""
	}
	result, err := containerdconfig.Configure(file.text, settings)
	if err != nil {
		return locate(o.config, err)
	}
	f, err := containerdconfig.Read(result.Text, settings.Node)
	if err != nil {
		return locate(o.config, err)
	}
	if err := errors.Join(o.imports(f, settings.Node)...); err != nil {
		return err
	}
	for _, warning := range result.Warnings {
		fmt.Fprintf(stderr, "warning: %s\n", warning)
	}
	if o.dryRun {
		_, err := io.WriteString(stdout, printer.DiffText(o.config, file.text, result.Text))
		return err
	}
	if settings.Shim != "" {
		if _, err := os.Stat(o.shim); err != nil {
			return fmt.Errorf("the shim does not exist, so no container would start: %w; run 'dxctl runtime install' first", err)
		}
	}
	return o.write(ctx, stdout, stderr, file, result)
}

// realShim returns the path of the shim that ours runs, "" if it is unknown.
func (o *configureOptions) realShim() string {
	p, err := policy.Read(o.stateDir)
	if err != nil {
		return ""
	}
	path, _ := shim.FindRuntime(o.shim, p.Shim.Runtime)
	return path
}

// write writes the result, and restarts containerd if requested and necessary.
func (o *configureOptions) write(ctx context.Context, stdout, stderr io.Writer, file *managedFile, result containerdconfig.Result) error {
	changed := !bytes.Equal(file.text, result.Text)
	pending, err := newPending(file, result.Text, true)
	if err != nil {
		return err
	}
	pending.Shim, pending.Handlers = o.shim, result.Handlers
	restart := o.restart && (changed || !o.hasLoaded(ctx, o.restartLimit, pending.ready) || o.isOutdated(ctx, file))
	if restart {
		pending.Attempt = hash(fmt.Appendf(nil, "%q %q %q %q %v", file.path, file.text, result.Text, o.service(), o.restartLimit))
		err := o.checkRestart(ctx)
		if err == nil {
			err = checkAttempt(o.stateDir, pending.Attempt, time.Now())
		}
		if err != nil {
			return fmt.Errorf("%s was not changed: %w", file.path, err)
		}
		if file.journal == nil && o.restartSpread > 0 {
			if err := o.spread(ctx, stderr); err != nil {
				return fmt.Errorf("%s was not changed: %w", file.path, err)
			}
			// The programs that set up a node may have changed the file meanwhile.
			o.restartSpread = 0
			return o.run(ctx, stdout, stderr)
		}
	}
	waits := o.restartMode == restartOnReboot && !o.hasLoaded(ctx, queryTimeout, pending.ready)
	err = o.apply(ctx, stderr, pending, restart, changed || waits, func() error {
		if !changed {
			fmt.Fprintf(stderr, "%s is already configured%s\n", o.config, handlerList(result.Handlers))
			return nil
		}
		if err := file.write(result); err != nil {
			return err
		}
		fmt.Fprintf(stderr, "configured %s%s\n", o.config, handlerList(result.Handlers))
		return nil
	})
	if err != nil {
		return err
	}
	if o.addHandler != "" {
		_, err = io.WriteString(stdout, runtimeClass(o.addHandler, o.os))
	}
	return err
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
func (o *configureOptions) spread(ctx context.Context, stderr io.Writer) error {
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
