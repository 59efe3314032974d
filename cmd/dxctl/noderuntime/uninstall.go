package noderuntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/directx-nri/directx-nri/advertiser/nodelabels"
	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/shim/realshim"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

type uninstallOptions struct {
	restarter
	shim                                                       string // its path in shimDir
	shimDir, containerdState, realShim, runtimeDir, labelsFile string
	purge, hold                                                bool
}

// NewUninstallCommand returns 'dxctl runtime uninstall'.
func NewUninstallCommand() *cobra.Command {
	var o uninstallOptions
	defaults := paths.Default()
	command := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the runtime shim",
		Long: `Removes the runtime shim and its log, after 'dxctl runtime unconfigure --restart'.

Running containers continue: --restart hands them over to the real shim. Containers with
GPUs do not start again: delete them first, or set --force.`,
		Example: `  dxctl runtime uninstall --restart

  # no pod may hold a GPU
  dxctl runtime uninstall --restart --purge`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	labelsFile := nodelabels.FeatureFile
	if runtime.GOOS == "windows" {
		labelsFile = "" // directx-labeler's file is in a volume of the pod.
	}
	flags := command.Flags()
	o.addRestartFlags(command)
	containerd.AddShimDirFlag(flags, &o.shimDir)
	flags.StringVar(&o.realShim, "real-shim", "", "the real shim, to which containers are handed over (default: the configured one)")
	flags.StringVar(&o.containerdState, "containerd-state", defaults.ContainerdState, "containerd's state `DIRECTORY`")
	flags.StringVar(&o.runtimeDir, "runtime-dir", defaults.Runtime, "runtime `DIRECTORY` of directx-nri, for --purge")
	flags.StringVar(&o.labelsFile, "labels-file", labelsFile, "`FILE` of directx-advertiser with the node's labels, for --purge")
	flags.BoolVar(&o.purge, "purge", false, "also remove the allocation records and the node policy")
	o.addForceFlag(command)
	flags.BoolVar(&o.hold, "hold", false, "wait for a signal at the end, in a DaemonSet's pod")
	return command
}

func (o *uninstallOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := errors.Join(containerd.CheckShimDir(o.shimDir), o.CheckFlags()); err != nil {
		return err
	}
	record, err := containerd.ReadRecord(o.stateDir)
	if err != nil {
		return err
	}
	if record.RestartDue && !o.allowRestart {
		return errlog.WithRemedy(containerd.ErrRestartDue, "add --restart")
	}
	o.shim = filepath.Join(o.shimDir, shimfile.FileName())
	err = o.checkUnused(ctx, record.RestartDue)
	if err == nil {
		err = o.checkHolders(ctx, stderr, true)
	}
	if err == nil {
		err = o.handOver(ctx, stdout, &record)
	}
	if err != nil {
		return fmt.Errorf("nothing was removed: %w", err)
	}
	p, _ := policy.Read(o.stateDir) // With an error, the log is the default.
	if err := o.removeFiles(stdout, stderr, record, p.Shim.LogPath(o.stateDir)); err != nil {
		return err
	}
	if o.hold {
		fmt.Fprintln(stdout, "waiting for a signal")
		<-ctx.Done()
	}
	return nil
}

// removeFiles removes the shim, its log, and the other files of dxctl and the daemons.
func (o *uninstallOptions) removeFiles(stdout, stderr io.Writer, record containerd.ChangeRecord, log string) error {
	removed, err := shimfile.Remove(o.shim)
	record.ClearFailure() // Another configuration may not fail.
	err = errors.Join(err, shimfile.ClearBypass(o.stateDir), record.Save(o.stateDir))
	remove := func(removeOne func(string) error, paths ...string) {
		for _, path := range paths {
			const devices = fs.ModeDevice | fs.ModeNamedPipe // such as a log in /dev/null
			if info, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode()&devices != 0 {
				continue
			}
			if removeErr := removeOne(path); removeErr != nil {
				err = errors.Join(err, removeErr)
			} else {
				removed = append(removed, path)
			}
		}
	}
	remove(os.Remove, log, log+".1", filepath.Join(o.stateDir, paths.VerifyFile))
	if o.purge {
		remove(os.RemoveAll, paths.Allocations(o.stateDir))
		remove(os.Remove, policy.Path(o.stateDir), policy.RealShimFile(o.stateDir),
			node.CompiledInventory(o.stateDir).Path(), node.Discovered(o.stateDir).Path(), o.labelsFile)
		err = errors.Join(err, removeUnfinished(o.stateDir))
		for _, dir := range []string{o.runtimeDir, o.stateDir} {
			// Only if it is empty, because a flag may name a wrong one.
			if os.Remove(dir) == nil {
				removed = append(removed, dir)
			} else if durable.Exists(dir) {
				fmt.Fprintf(stderr, "kept %s: it is not empty\n", dir)
			}
		}
	} else if os.Remove(o.stateDir) != nil && durable.Exists(o.stateDir) {
		fmt.Fprintf(stderr, "kept %s: allocation records and the node policy; --purge removes them\n", o.stateDir)
	}
	for _, path := range removed {
		fmt.Fprintf(stdout, "removed %s\n", path)
	}
	if err == nil && len(removed) == 0 {
		fmt.Fprintln(stdout, "there is nothing to remove")
	}
	return err
}

// removeUnfinished removes temporary files that an interrupted program left.
func removeUnfinished(dir string) (err error) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if durable.IsTemp(entry.Name()) {
			err = errors.Join(err, durable.Remove(filepath.Join(dir, entry.Name())))
		}
	}
	return err
}

// checkUnused returns an error if containerd uses the shim, or if that is unknown. If a restart is due,
// containerd is restarted later and then uses its configuration file.
func (o *uninstallOptions) checkUnused(ctx context.Context, restartDue bool) error {
	const fix = "run 'dxctl runtime unconfigure --restart' first"
	running, runningErr := o.readRunning(ctx)
	config, err := o.ReadConfig(o.Release(running))
	if err != nil {
		return err
	}
	if handlers := handlersWithShim(config.Handlers); len(handlers) > 0 {
		return errlog.WithRemedy(fmt.Errorf("runtime handler %s in %s uses the shim", handlers[0], o.ConfigFile), fix)
	}
	loaded, code := handlersWithShim(running.Handlers), status.Code(runningErr)
	switch {
	case len(loaded) > 0 && !restartDue:
		return errlog.WithRemedy(fmt.Errorf("runtime handler %s of the running containerd uses the shim", loaded[0]),
			"restart containerd, or "+fix)
	case code == codes.OK, code == codes.Unimplemented, code == codes.Unavailable:
		return nil // With an error, it has no CRI plugin, or reads the file when it starts.
	}
	return fmt.Errorf("containerd's runtime handlers are unknown: %w; is --cri-socket %s correct?", runningErr, o.CRISocket)
}

// handOver assigns the containers that the shim has started to the real shim, and restarts
// containerd.
func (o *uninstallOptions) handOver(ctx context.Context, stdout io.Writer, record *containerd.ChangeRecord) error {
	bundles, err := findBundles(o.containerdState, o.shim)
	switch {
	case err != nil || len(bundles) == 0 && !record.RestartDue:
		return err
	case !o.allowRestart:
		return errlog.WithRemedy(fmt.Errorf("%s were started by the shim", describeBundles(bundles)),
			"add --restart, which hands them over to the real shim, or stop them")
	}
	realShim, err := o.findRealShim()
	if err != nil && len(bundles) > 0 {
		return err
	}
	if err := o.prepareRestart(ctx, record); err != nil {
		return err
	}
	if err := setShim(bundles, realShim); err != nil {
		return err
	}
	// containerd calls the runtime shim for these containers until containerd is restarted.
	if err := o.restart(ctx, stdout, record); err != nil {
		return err
	}
	for _, b := range bundles {
		if durable.Exists(filepath.Join(b.path, binaryFile)) {
			fmt.Fprintf(stdout, "handed container %s over to %s\n", b.name, realShim)
		}
	}
	if bundles, err = findBundles(o.containerdState, o.shim); err != nil || len(bundles) == 0 {
		return err
	}
	return errlog.WithRemedy(fmt.Errorf("%s were started by the shim in the meantime", describeBundles(bundles)), "run the command again")
}

func (o *uninstallOptions) findRealShim() (string, error) {
	if o.realShim != "" {
		return realshim.Find(o.shim, o.realShim)
	}
	name, err := policy.ReadRealShim(o.stateDir)
	if err != nil {
		return "", fmt.Errorf("the real shim is unknown: %w; set --real-shim", err)
	}
	return realshim.Find(o.shim, name)
}

// describeBundles returns a phrase with the number and the first names of running containers.
func describeBundles(bundles []bundle) string {
	var names []string
	for _, b := range bundles {
		names = append(names, b.name)
	}
	return fmt.Sprintf("%d running container(s) (%s)", len(bundles), cli.Abbreviate(names, 5))
}
