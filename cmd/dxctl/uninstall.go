package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/durable"
	"directx-nri/internal/paths"
	"directx-nri/internal/shimfile"
	"directx-nri/nri/shim"
)

// pendingName is the file in our state folder that tells that containers were
// handed over and containerd has not been restarted since.
const pendingName = "uninstall-pending"

type uninstallOptions struct {
	target
	from            string
	containerdState string
	shimConfig      string
	runtime         string
	runtimeDir      string
	purge           bool
	hold            bool
	// stateGiven tells that --state-dir was said, which counts more than the file.
	stateGiven bool
	// runtimeGiven tells the same of --runtime-dir.
	runtimeGiven bool
}

func newUninstallCommand(goos string) *cobra.Command {
	o := uninstallOptions{target: target{os: goos}}
	places := paths.Default()
	command := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the runtime shim, and leave the node as it was",
		Long: `Removes our runtime shim, its log, and the configuration files that 'dxctl runtime
install' or 'dxctl config install' wrote and nobody has changed since. containerd
must not use the shim any more: 'dxctl runtime unconfigure --restart' comes first.

Containers that were started through the shim go on: containerd is told to have
the real shim clean up after them, which it learns when it starts. So as long as
there are such containers --restart is needed. What is kept is listed.`,
		Example: `  dxctl runtime unconfigure --restart
  dxctl runtime uninstall --restart

  # the allocation records too; no pod may hold a GPU any more
  dxctl runtime uninstall --restart --purge`,
		RunE: func(c *cobra.Command, _ []string) error {
			o.stateGiven, o.runtimeGiven = c.Flags().Changed("state-dir"), c.Flags().Changed("runtime-dir")
			return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	o.addFlags(flags)
	flags.StringVar(&o.from, "from", places.ShimDir, "folder that the shim is installed in")
	flags.StringVar(&o.shimConfig, "shim-config", places.Config, "the shim's configuration file")
	flags.StringVar(&o.runtime, "runtime", "", "the real shim, which takes over (default: as configured for ours)")
	flags.StringVar(&o.containerdState, "containerd-state", places.ContainerdState, "containerd's state folder")
	flags.StringVar(&o.runtimeDir, "runtime-dir", places.Runtime, "our folder of sockets, for --purge")
	flags.BoolVar(&o.purge, "purge", false, "remove the allocation records too")
	flags.BoolVar(&o.hold, "hold", false, "when all is removed, wait to be told to end, as the main container of a DaemonSet has to")
	o.addChangeFlags(command)
	return command
}

func (o *uninstallOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.remove(ctx, stdout, stderr); err != nil || !o.hold {
		return err
	}
	fmt.Fprintf(stdout, "waiting to be told to end\n")
	<-ctx.Done()
	return nil
}

func (o *uninstallOptions) remove(ctx context.Context, stdout, stderr io.Writer) error {
	if !filepath.IsAbs(o.from) {
		return cli.Usage("--from %q is not an absolute path", o.from)
	}
	if err := o.check(); err != nil {
		return err
	}
	path := filepath.Join(o.from, shimfile.Name())
	// A configuration that cannot be read decides nothing but who takes over.
	var overrides []config.Override
	if o.stateGiven && filepath.IsAbs(o.stateDir) {
		overrides = append(overrides, config.Override{Origin: "--state-dir", Key: "stateDir", Value: o.stateDir})
	}
	configuration, configErr := config.Read(o.shimConfig, overrides...)
	if configErr != nil {
		configuration = config.Fallback(overrides...)
	}
	hasCRI, err := o.unused(ctx)
	if err != nil {
		return fmt.Errorf("nothing is removed: %w", err)
	}
	if err := o.handOver(ctx, stdout, path, hasCRI, func() (string, error) {
		return o.realShim(path, configuration, configErr)
	}); err != nil {
		return fmt.Errorf("nothing is removed: %w", err)
	}
	removed, err := shimfile.Remove(ctx, path)
	r := removal{removed: removed}
	if err != nil {
		r.errs = append(r.errs, err)
	}
	r.remove(configuration.Shim.Log, configuration.Shim.Log+".1")
	r.remove(filepath.Join(o.stateDir, attemptName))
	states := union(o.stateDir, configuration.StateDir)
	if o.purge {
		for _, folder := range states {
			r.removeFolder(paths.Allocations(folder))
		}
	}
	// It says where the records are, and so goes after them.
	o.removeConfig(ctx, &r)
	for _, folder := range states {
		removeUnfinished(&r, folder)
	}
	if o.purge {
		runtimes := []string{o.runtimeDir}
		if !o.runtimeGiven {
			runtimes = union(o.runtimeDir, configuration.RuntimeDir)
		}
		r.removeEmpty(append(runtimes, states...))
	} else {
		for _, folder := range states {
			_ = os.Remove(folder) // Fails as long as something else is in it.
		}
		r.keep(o.stateDir, "the allocation records are there; --purge removes it")
	}
	r.print(stdout, stderr)
	if err := errors.Join(r.errs...); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// unused returns an error when containerd starts containers by the shim, or when
// that cannot be told. hasCRI is false when containerd runs without its CRI
// plugin.
func (o *uninstallOptions) unused(ctx context.Context) (hasCRI bool, err error) {
	const fix = "run 'dxctl runtime unconfigure --restart' first"
	text, _, err := readFile(o.config)
	if err != nil {
		return false, err
	}
	f, err := containerdconfig.Read(text, o.node(ctx))
	if err != nil {
		return false, locate(o.config, err)
	}
	for _, h := range f.Handlers {
		if h.Ours() {
			return false, fmt.Errorf("%s has containers of the runtime handler %s go through the shim: %s", o.config, h.Name, fix)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, o.restartLimit)
	defer cancel()
	loaded, err := o.loaded(ctx)
	switch status.Code(err) {
	case codes.OK:
	case codes.Unimplemented:
		return false, nil
	case codes.Unavailable:
		// It does not run, and will have read the file when it does.
		return true, nil
	default:
		return false, fmt.Errorf("what containerd has loaded is not known: %w; is --cri-socket %s right?", err, o.criSocket)
	}
	for _, h := range loaded {
		if h.Ours() {
			return true, fmt.Errorf("the running containerd has containers of the runtime handler %s go through the shim: restart it, or %s", h.Name, fix)
		}
	}
	return true, nil
}

// realShim returns the shim that takes over.
func (o *uninstallOptions) realShim(ours string, c config.Config, configErr error) (string, error) {
	name := o.runtime
	if name == "" {
		if configErr != nil {
			return "", fmt.Errorf("the real shim is not known: %w; name it with --runtime", configErr)
		}
		name = c.Shim.Runtime
	}
	if name == "" {
		name = shim.UsualRuntime
	}
	path, err := shim.FindRuntime(ours, name)
	if err != nil {
		return "", fmt.Errorf("%w; name it with --runtime", err)
	}
	return path, nil
}

// handOver has containerd know another shim for the containers that were started
// through ours.
func (o *uninstallOptions) handOver(ctx context.Context, stdout io.Writer, ours string, hasCRI bool, realShim func() (string, error)) error {
	found, err := shimfile.FindBundles(o.containerdState, ours)
	if err != nil {
		return err
	}
	pending := filepath.Join(o.stateDir, pendingName)
	_, isPending, err := readFile(pending)
	if err != nil {
		return err
	}
	switch {
	case len(found) == 0 && !isPending:
		return nil
	case !o.restart && len(found) > 0:
		return fmt.Errorf("%d container(s) run that were started through the shim (%s): run this again with --restart, which hands them over to the real one, or end them", len(found), names(found))
	case !o.restart:
		return errors.New("containers were handed over to the real shim and containerd has not been restarted since: run this again with --restart")
	}
	heir, err := realShim()
	if err != nil {
		return err
	}
	if err := o.service().Check(ctx); err != nil {
		return err
	}
	// On the disk before anything changes: a containerd that does not know of the
	// change yet calls our shim.
	if err := durable.MakePrivate(o.stateDir); err != nil {
		return err
	}
	if err := durable.Replace(pending, nil, 0o600); err != nil {
		return err
	}
	if err := shimfile.HandOff(found, heir); err != nil {
		return err
	}
	err = o.restartAndCheck(ctx, func([]containerdconfig.Handler) error { return nil })
	if err != nil && (hasCRI || status.Code(err) != codes.Unimplemented) {
		return err
	}
	if err := durable.Remove(pending); err != nil {
		return err
	}
	_ = os.Remove(o.stateDir) // Fails as long as something else is in it.
	fmt.Fprintf(stdout, "containerd is restarted\n")
	for _, b := range found {
		if b.Exists() {
			fmt.Fprintf(stdout, "container %s is handed over to %s\n", b, heir)
		} else {
			fmt.Fprintf(stdout, "container %s has ended\n", b)
		}
	}
	if found, err = shimfile.FindBundles(o.containerdState, ours); err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("%d container(s) were started through the shim in the meantime (%s): run this again", len(found), names(found))
	}
	return nil
}

// names lists a few of many containers.
func names(bundles []shimfile.Bundle) string {
	const most = 5
	var list []string
	for i, b := range bundles {
		if i == most {
			list = append(list, "…")
			break
		}
		list = append(list, b.String())
	}
	return strings.Join(list, ", ")
}

// removeConfig removes the configuration files that we have written, as long as
// they are as we have written them.
func (o *uninstallOptions) removeConfig(ctx context.Context, r *removal) {
	// A copy is ours whoever wrote the file.
	r.remove(o.shimConfig + config.LastGood)
	if exists(filepath.Join(o.stateDir, ownFilesName)) || exists(filepath.Join(o.stateDir, ownFilesLock)) {
		unlock, err := lockOwnFiles(ctx, o.stateDir)
		if err != nil {
			r.errs = append(r.errs, err)
			return
		}
		defer func() {
			if err := unlock(); err != nil {
				r.errs = append(r.errs, err)
			}
		}()
	}
	own, err := openOwnFiles(o.stateDir)
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	files := own.paths()
	if !slices.Contains(files, o.shimConfig) {
		files = append(files, o.shimConfig)
	}
	for _, path := range files {
		state, _, err := own.look(path)
		if err != nil {
			r.errs = append(r.errs, err)
			continue
		}
		switch state {
		case ownOurs:
			// One that stays, stays ours.
			if !r.removeBy(os.Remove, path) {
				continue
			}
		case ownChanged, ownForeign:
			r.keep(path, "somebody has written or changed it")
		case ownMissing:
		}
		if err := own.forget(path); err != nil {
			r.errs = append(r.errs, err)
		}
		// What a program left that was ended while it wrote.
		removeUnfinished(r, filepath.Dir(path))
		_ = os.Remove(filepath.Dir(path)) // Fails as long as there are other files.
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// removeUnfinished removes what is in folder of files that were never finished. It
// is told of none: nobody has seen them.
func removeUnfinished(r *removal, folder string) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return // It is not there, or is kept.
	}
	for _, entry := range entries {
		if !durable.IsTemp(entry.Name()) {
			continue
		}
		if err := durable.Remove(filepath.Join(folder, entry.Name())); err != nil {
			r.errs = append(r.errs, err)
		}
	}
}

// union returns a, and b where it is another folder.
func union(a, b string) []string {
	if b == "" || filepath.Clean(a) == filepath.Clean(b) {
		return []string{a}
	}
	return []string{a, b}
}

// removal is what was removed and what is left.
type removal struct {
	removed []string
	kept    []string
	errs    []error
}

// remove removes files. A configuration may name a folder by mistake, and so
// no folder with anything in it is removed.
func (r *removal) remove(paths ...string) {
	for _, path := range paths {
		r.removeBy(os.Remove, path)
	}
}

// removeEmpty removes folders when nothing is in them: a flag, or the
// configuration, may name the wrong ones.
func (r *removal) removeEmpty(folders []string) {
	for _, folder := range folders {
		if err := os.Remove(folder); err == nil {
			r.removed = append(r.removed, folder)
		} else {
			r.keep(folder, "other files are in it")
		}
	}
}

// removeFolder removes a folder with what is in it.
func (r *removal) removeFolder(path string) { r.removeBy(os.RemoveAll, path) }

// removeBy tells whether nothing is at path any more.
func (r *removal) removeBy(remove func(string) error, path string) bool {
	if !exists(path) {
		return true
	}
	if err := remove(path); err != nil {
		r.errs = append(r.errs, err)
		return false
	}
	r.removed = append(r.removed, path)
	return true
}

// keep tells why something is left, if it is there.
func (r *removal) keep(path, why string) {
	if exists(path) {
		r.kept = append(r.kept, fmt.Sprintf("%s: %s", path, why))
	}
}

func (r *removal) print(stdout, stderr io.Writer) {
	for _, path := range r.removed {
		fmt.Fprintf(stdout, "removed %s\n", path)
	}
	for _, line := range r.kept {
		fmt.Fprintf(stderr, "kept %s\n", line)
	}
	if len(r.removed) == 0 && len(r.errs) == 0 {
		fmt.Fprintf(stdout, "nothing of ours is there\n")
	}
}
