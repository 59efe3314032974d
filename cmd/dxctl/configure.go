package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/specdiff"
	"directx-nri/internal/cli"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/paths"
	"directx-nri/internal/shimfile"
	"directx-nri/internal/winpath"
)

type configureOptions struct {
	target
	shim          string
	handlers      []string
	addHandler    string
	noShim, noNRI bool
	dryRun        bool
	fileVersion   int
}

func newConfigureCommand(goos string) *cobra.Command {
	o := configureOptions{target: target{os: goos}}
	command := &cobra.Command{
		Use:   "configure",
		Short: "Have containerd start containers by our runtime shim, and turn NRI on",
		Long: `Changes containerd's configuration file: each CRI runtime handler that can have
GPUs gets runtime_path, so that containerd runs our shim, and hands on the
annotations directx.microsoft.com/*; on Linux NRI is turned on. By default these
are the handlers of io.containerd.runhcs.v1 with process isolation on Windows,
and those of io.containerd.runc.v2 on Linux.

With --add-handler these are left alone, and a handler of its own is added for
pods that name its RuntimeClass. directx-advertiser --served-by shim offers GPUs
then too, and does not let a pod start that holds one and runs by another
handler: 'kubectl describe pod' says so.

Comments, order and formatting of the file stay. A copy of what it was is beside
it, with ` + backupSuffix + ` behind its name, until 'dxctl runtime unconfigure'
has put it back. Run again, it changes nothing. containerd reads the file when it
starts: restart it, or have it restarted by --restart, which does so only when
what runs has not read it. When containerd did not come up with the file, the same
is not tried again for an hour.

A pod on Linux reaches no service manager. With --restart-mode signal it needs
none: the process that listens on --cri-socket, if it is containerd, is told to
end, and is started again by what supervises it. The pod takes hostPID: true and,
for this container, appArmorProfile: {type: Unconfined}.

A file that is not there is begun, of version 2, which every containerd reads.
k3s and RKE2 write their file anew at each start: give a copy of it as
config.toml.tmpl or config-v3.toml.tmpl beside it to --config there.`,
		Example: `  # see what would be changed
  dxctl runtime configure --dry-run

  # change it, restart containerd, and go back if it does not come up
  dxctl runtime configure --restart

  # leave the handlers that are there alone: GPUs for pods of a RuntimeClass
  dxctl runtime configure --add-handler directx --restart > runtimeclass.yaml

  # Linux: NRI alone, without the shim
  dxctl runtime configure --no-shim

  # the same, in a pod
  dxctl runtime configure --no-shim --restart --restart-mode signal`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	o.addFlags(flags)
	flags.StringVar(&o.shim, "shim", filepath.Join(paths.Default().ShimDir, shimfile.FileName(goos)), "the runtime shim, an absolute path")
	flags.StringArrayVar(&o.handlers, "handler", nil, "runtime handler to change; may be given again (default: each that can have GPUs)")
	flags.StringVar(&o.addHandler, "add-handler", "", "add a runtime handler of this name (without one: directx) in place of changing others, and print its RuntimeClass")
	flags.Lookup("add-handler").NoOptDefVal = "directx"
	flags.BoolVar(&o.noShim, "no-shim", false, "leave the runtime handlers alone")
	if goos != "windows" {
		flags.BoolVar(&o.noNRI, "no-nri", false, "leave NRI as it is")
	}
	flags.IntVar(&o.fileVersion, "file-version", 2, "version of a file that is begun: 2, 3 or 4")
	flags.BoolVar(&o.dryRun, "dry-run", false, "print the change as a unified diff and write nothing")
	o.addChangeFlags(command)
	return command
}

func (o *configureOptions) check() error {
	absolute := path.IsAbs(o.shim)
	if o.os == "windows" {
		absolute = winpath.IsAbs(o.shim)
	}
	switch {
	case o.noShim && (o.noNRI || o.os == "windows"):
		return cli.Usage("nothing is left to configure without the shim and NRI")
	case o.noShim && (len(o.handlers) > 0 || o.addHandler != ""):
		return cli.Usage("--no-shim excludes --handler and --add-handler")
	case !absolute:
		return cli.Usage("--shim %q is not an absolute path", o.shim)
	case !shimfile.IsShim(o.shim):
		return cli.Usage("--shim %q is not called %s: it could not be told from others", o.shim, shimfile.FileName(o.os))
	case o.addHandler != "" && !isLabel(o.addHandler):
		return cli.Usage("--add-handler %q is no name of a runtime handler: it has small letters, digits and hyphens in it", o.addHandler)
	case o.fileVersion < 2 || o.fileVersion > 4:
		return cli.Usage("--file-version %d is none of 2, 3, 4", o.fileVersion)
	case o.dryRun && o.restart:
		return cli.Usage("--dry-run excludes --restart")
	}
	return o.target.check()
}

// isLabel tells whether Kubernetes takes name for a runtime handler.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-label-names
func isLabel(name string) bool {
	const longest = 63
	return len(name) <= longest && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && strings.Trim(name, "-") == name
}

func (o *configureOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	file, err := openManaged(o.config, o.stateDir)
	if err != nil {
		return err
	}
	settings := containerdconfig.Settings{
		Node: o.node(ctx), Shim: o.shim, Handlers: o.handlers, AddHandler: o.addHandler,
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
	if err := o.imports(f, settings.Node); err != nil {
		return err
	}
	for _, warning := range result.Warnings {
		fmt.Fprintf(stderr, "warning: %s\n", warning)
	}
	if o.dryRun {
		fmt.Fprintf(stdout, "%s", specdiff.Text(o.config, o.config, string(file.text), string(result.Text)))
		return nil
	}
	if settings.Shim != "" {
		if _, err := os.Stat(o.shim); err != nil {
			return fmt.Errorf("the shim is not there, and no container would start: %w; install it with 'dxctl runtime install'", err)
		}
	}
	return o.apply(ctx, stdout, stderr, file, result)
}

// apply writes the result and restarts containerd when it is to be and has not
// loaded it.
func (o *configureOptions) apply(ctx context.Context, stdout, stderr io.Writer, file *managedFile, result containerdconfig.Result) error {
	changed := !bytes.Equal(file.text, result.Text) || !file.exists
	back, err := file.snapshot()
	if err != nil {
		return err
	}
	ready := o.ready(result.Handlers)
	restart := o.restart && (changed || !o.isLoaded(ctx, ready) || o.isOutdated(ctx, file.path))
	tried := attempt{o.stateDir, hash(fmt.Appendf(nil, "%q %q %q %q %v", file.path, file.text, result.Text, o.service(), o.restartLimit))}
	if restart {
		if err := o.service().Check(ctx); err != nil {
			return fmt.Errorf("nothing is changed: %w", err)
		}
		if err := tried.check(time.Now()); err != nil {
			return fmt.Errorf("nothing is changed: %w", err)
		}
	}
	if changed {
		if err := file.write(result); err != nil {
			return err
		}
		fmt.Fprintf(stderr, "%s is configured%s\n", o.config, list(result.Handlers))
	} else {
		fmt.Fprintf(stderr, "%s is configured already%s\n", o.config, list(result.Handlers))
	}
	switch {
	case restart:
		if err := o.restartOrPutBack(ctx, stderr, ready, back); err != nil {
			if ctx.Err() != nil {
				return err // We were told to end, and nothing is known of the file.
			}
			return tried.failed(time.Now(), err)
		}
		if err := forgetAttempts(o.stateDir); err != nil {
			return err
		}
	case o.restart:
		// It runs with this, whoever has restarted it.
		if err := forgetAttempts(o.stateDir); err != nil {
			return err
		}
	case changed:
		fmt.Fprintf(stderr, "restart containerd to have it read the file\n")
	}
	if o.addHandler != "" {
		fmt.Fprintf(stdout, "%s", runtimeClass(o.addHandler, o.os))
	}
	return nil
}

// list returns the names of handlers for a message.
func list(handlers []string) string {
	if len(handlers) == 0 {
		return ""
	}
	return ": runtime handlers " + strings.Join(handlers, ", ")
}

// ready returns a function that tells what handlers lack.
func (o *configureOptions) ready(names []string) func([]containerdconfig.Handler) error {
	return func(loaded []containerdconfig.Handler) error {
		for _, name := range names {
			i := slices.IndexFunc(loaded, func(h containerdconfig.Handler) bool { return h.Name == name })
			if i < 0 {
				return fmt.Errorf("the runtime handler %s is not loaded", name)
			}
			if loaded[i].RuntimePath != o.shim {
				return fmt.Errorf("the runtime handler %s is loaded with runtime_path %q", name, loaded[i].RuntimePath)
			}
		}
		return nil
	}
}

func (o *configureOptions) isLoaded(ctx context.Context, ready func([]containerdconfig.Handler) error) bool {
	ctx, cancel := context.WithTimeout(ctx, o.restartLimit)
	defer cancel()
	handlers, err := o.loaded(ctx)
	return err == nil && ready(handlers) == nil
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
