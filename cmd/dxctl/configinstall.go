package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"directx-nri/discovery/inventory"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/filewatch"
	"directx-nri/internal/logging"
	"directx-nri/internal/paths"
)

// What a folder has that a node's configuration is installed from, and the
// inventory's name on the node.
const (
	configName    = "config.yaml"
	inventoryName = "inventory.yaml"
)

type configInstallOptions struct {
	from     string
	config   string
	stateDir string
	watch    bool
	timing   filewatch.Timing
}

func newConfigInstallCommand() *cobra.Command {
	o := configInstallOptions{timing: filewatch.Usual()}
	command := &cobra.Command{
		Use:   "install --from FOLDER",
		Short: "Put the configuration of a mounted ConfigMap in its place on the node",
		Long: `Takes config.yaml and inventory.yaml from a folder, such as a mounted ConfigMap,
checks them, and puts them where the programs of this node read them: all programs
then follow the change by themselves. Either may be missing. What was installed,
and is not in the folder any more, is removed.

A file on the node that somebody has written, or has changed since it was
installed, is never overwritten: nothing is done then, and it is said what to do.
Run again, it changes nothing. 'dxctl runtime uninstall' removes what is here as
it was installed.

With --watch it goes on until it is told to end, and takes changes up. What cannot
be installed is logged, once, and what was there stays until it can.

Exit status: 0 when the node has what the folder has, 1 when it has not.`,
		Example: `  # in a pod that mounts a ConfigMap
  dxctl config install --from /config

  # and go on with what becomes of it
  dxctl config install --from /config --watch`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.from, "from", "", "`FOLDER` that has config.yaml, inventory.yaml or both")
	flags.BoolVar(&o.watch, "watch", false, "go on, and take changes up, until told to end")
	flags.StringVar(&o.config, "config", config.Path(), "the node's configuration `FILE`; the inventory is put beside it, as "+inventoryName)
	flags.StringVar(&o.stateDir, "state-dir", paths.Default().State, "`FOLDER` in which it is kept what was installed; give 'dxctl runtime uninstall' the same")
	return command
}

func (o *configInstallOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	switch {
	case o.from == "":
		return cli.Usage("--from is missing: name the folder that has config.yaml")
	case !filepath.IsAbs(o.config):
		return cli.Usage("--config %q is not an absolute path", o.config)
	case !filepath.IsAbs(o.stateDir):
		return cli.Usage("--state-dir %q is not an absolute path", o.stateDir)
	}
	// By its path a file is known to be ours.
	o.config = filepath.Clean(o.config)
	if o.watch {
		log := logrus.New()
		log.SetOutput(stderr)
		return o.follow(ctx, log)
	}
	done, err := o.install(ctx)
	for _, line := range done.lines() {
		fmt.Fprintln(stdout, line)
	}
	if err == nil && len(done.lines()) == 0 {
		fmt.Fprintf(stdout, "%s is up to date\n", filepath.Dir(o.config))
	}
	return err
}

// follow installs what the folder has, as often as it changes.
func (o *configInstallOptions) follow(ctx context.Context, log *logrus.Logger) error {
	// As config.yaml has it by default.
	if err := logging.Apply(log, "info", "text"); err != nil {
		return err
	}
	entry := log.WithField("from", o.from)
	entry.WithField("config", o.config).Info("The node's configuration follows the folder")
	var refused string
	filewatch.Run(ctx, filewatch.Options{
		Folder: o.from, Timing: o.timing,
		Look: func(bool) {
			done, err := o.install(ctx)
			if done.checked {
				// They have been checked.
				_ = logging.Apply(log, done.config.Log.Level, done.config.Log.Format)
			}
			for _, line := range done.lines() {
				entry.Info(line)
			}
			switch {
			case err != nil && ctx.Err() != nil:
				return
			case err != nil && err.Error() != refused:
				entry.WithError(err).Error("The configuration is not installed, and what was there stays; it is tried again by itself")
			case err == nil && refused != "":
				entry.Info("The node has what the folder has again")
			}
			refused = ""
			if err != nil {
				refused = err.Error()
			}
		},
		Trouble: func(err error) {
			entry.WithError(err).Warn("The folder cannot be watched, and is looked at every ten seconds instead")
		},
	})
	entry.Info("Told to end")
	return nil
}

// done is what an installation did.
type done struct {
	// config is what was to be installed, the defaults without config.yaml, once it
	// is known to be good.
	config  config.Config
	checked bool

	put, removed, notOurs []string
}

// lines tells it, a line each.
func (d done) lines() []string {
	var lines []string
	for _, path := range d.put {
		lines = append(lines, path+" is installed")
	}
	for _, path := range d.removed {
		lines = append(lines, path+" is removed")
	}
	for _, path := range d.notOurs {
		lines = append(lines, path+" is left: it was changed by hand, and is not installed any more")
	}
	return lines
}

// install has the node be as the folder is, or changes nothing.
func (o *configInstallOptions) install(ctx context.Context) (d done, err error) {
	p, err := o.plan()
	switch {
	case errors.Is(err, errChangedByHand) || errors.Is(err, errNotInstalled):
		// Or another program of ours was in the middle of it.
	case err != nil:
		return d, err
	case len(p.steps) == 0:
		return done{config: p.config, checked: true}, nil
	}
	unlock, err := lockOwnFiles(ctx, o.stateDir)
	if err != nil {
		return d, err
	}
	defer func() {
		if unlockErr := unlock(); err == nil {
			err = unlockErr
		}
		_ = os.Remove(o.stateDir) // Fails as long as something is in it.
	}()
	if p, err = o.plan(); err != nil {
		return d, err
	}
	d.config, d.checked = p.config, true
	for _, s := range p.steps {
		if err := s.do(p.own, &d); err != nil {
			return d, err
		}
	}
	return d, nil
}

// plan is what has the node be as the folder is.
type plan struct {
	own    *ownFiles
	config config.Config
	steps  []step // those that change something, in order
}

// plan looks and changes nothing.
func (o *configInstallOptions) plan() (p plan, err error) {
	wanted, err := readWanted(o.from)
	if err != nil {
		return p, err
	}
	if p.own, err = openOwnFiles(o.stateDir); err != nil {
		return p, err
	}
	inventoryPath := filepath.Join(filepath.Dir(o.config), inventoryName)
	configStep, err := planStep(p.own, o.config, wanted.config, filepath.Join(o.from, configName))
	if err != nil {
		return p, err
	}
	inventoryStep, err := planStep(p.own, inventoryPath, wanted.inventory, filepath.Join(o.from, inventoryName))
	if err != nil {
		return p, err
	}
	if p.config, err = checkWanted(wanted, o.from, inventoryPath, inventoryStep); err != nil {
		return p, err
	}
	p.steps = slices.DeleteFunc(inOrder(inventoryStep, configStep), func(s step) bool { return s.action == actionNone })
	return p, nil
}

// wanted is what a folder has for the node, nil for a file that it does not have.
type wanted struct{ config, inventory []byte }

// readTries is how often a volume is read that is changed meanwhile.
const readTries = 5

// readWanted reads a folder. Of a volume of Kubernetes both files are of one
// version.
func readWanted(folder string) (w wanted, err error) {
	for range readTries {
		var again bool
		if w, again, err = readOnce(folder); !again {
			return w, err
		}
	}
	return wanted{}, fmt.Errorf("read what to install: %s is changed again and again; stop what does so", folder)
}

// readOnce tells that another version has come meanwhile by again.
func readOnce(folder string) (w wanted, again bool, err error) {
	if info, err := os.Stat(folder); err != nil {
		return w, false, fmt.Errorf("read what to install: %w; is the ConfigMap mounted there?", err)
	} else if !info.IsDir() {
		return w, false, fmt.Errorf("read what to install: %s is not a folder", folder)
	}
	// The files of one version never change; the kubelet removes them when there is
	// another one.
	version := folder
	if target, err := os.Readlink(filepath.Join(folder, filewatch.Data)); err == nil {
		if version = target; !filepath.IsAbs(target) {
			version = filepath.Join(folder, target)
		}
		defer func() {
			now, err := os.Readlink(filepath.Join(folder, filewatch.Data))
			again = err != nil || now != target
		}()
	}
	for _, file := range []struct {
		name string
		text *[]byte
	}{{configName, &w.config}, {inventoryName, &w.inventory}} {
		path := filepath.Join(version, file.name)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && !info.Mode().IsRegular():
			return w, false, fmt.Errorf("read what to install: %s is not a regular file", path)
		case err != nil:
			return w, false, fmt.Errorf("read what to install: %w", err)
		}
		// It decides what runs as the system. Whoever can write to the volume's own
		// folder can have it be of another version.
		if err := config.CheckVolume(filepath.Join(folder, file.name)); err != nil {
			return w, false, fmt.Errorf("read what to install: %w", err)
		}
		if *file.text, err = readOwn(path); err != nil {
			return w, false, fmt.Errorf("read what to install: %w", err)
		}
	}
	if w.config == nil && w.inventory == nil {
		return w, false, fmt.Errorf("read what to install: %s has neither %s nor %s; nothing is changed", folder, configName, inventoryName)
	}
	return w, false, nil
}

// checkWanted returns the configuration, or an error when the node's programs
// could not use what is wanted.
func checkWanted(w wanted, from, inventoryPath string, inventoryStep step) (c config.Config, err error) {
	c = config.Default()
	if w.config != nil {
		if c, err = config.Parse(w.config); err != nil {
			return c, fmt.Errorf("check %s: %w", from, err)
		}
	}
	if w.inventory != nil {
		if _, err := inventory.Parse(inventoryName, w.inventory); err != nil {
			return c, fmt.Errorf("check %s: %s", from, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	if c.Inventory == inventoryPath && w.inventory == nil && !inventoryStep.stays() {
		return c, fmt.Errorf("check %s: %s names %s as its inventory, which is not there: add %s", from, configName, inventoryPath, inventoryName)
	}
	return c, nil
}

// step is what is to become of one file of the node.
type step struct {
	path   string
	action action
	text   []byte // what is wanted, nil for no file
	state  ownState
}

type action int

const (
	actionNone action = iota
	actionPut
	actionRemove
	actionForget // the file is somebody else's now
)

// planStep returns what has the file at path be as wanted, nil for not there; or an
// error that says what to do when it is not ours to change.
func planStep(own *ownFiles, path string, wanted []byte, source string) (step, error) {
	state, present, err := own.look(path)
	if err != nil {
		return step{}, fmt.Errorf("look at %s: %w", path, err)
	}
	s := step{path: path, state: state, text: wanted}
	s.action, err = decideStep(state, wanted != nil, wanted != nil && present != nil && bytes.Equal(wanted, present) && (state != ownOurs || isClosed(path)), own.knows(path))
	if err != nil {
		return s, fmt.Errorf("%s %w and is left alone: move it away to have %s in its place; or to keep it, do without 'dxctl config install' (manageConfig: false in the Helm chart)", path, err, source)
	}
	return s, nil
}

// Why a file on the node is not ours to change.
var (
	errChangedByHand = errors.New("was changed by hand since it was installed,")
	errNotInstalled  = errors.New("was not installed by this program,")
)

// decideStep decides over a file that is as state says. same tells that it has the
// wanted text already, and as one of ours can be read; known that we have written
// it once.
func decideStep(state ownState, wanted, same, known bool) (action, error) {
	switch {
	case wanted && same && (state == ownOurs && known || state == ownForeign):
		// What somebody else has written stays theirs, even when it says the same.
		return actionNone, nil
	case wanted && (state == ownMissing || state == ownOurs):
		return actionPut, nil
	case wanted && state == ownChanged:
		return actionNone, errChangedByHand
	case wanted:
		return actionNone, errNotInstalled
	case !known:
		return actionNone, nil
	case state == ownOurs:
		return actionRemove, nil
	}
	return actionForget, nil
}

// stays tells that there is a file after the step.
func (s step) stays() bool {
	return s.action == actionPut || s.state != ownMissing && s.action != actionRemove
}

// inOrder has the configuration at no time name an inventory that is not there yet,
// or not any more.
func inOrder(inventory, config step) []step {
	if inventory.text == nil {
		return []step{config, inventory}
	}
	return []step{inventory, config}
}

func (s step) do(own *ownFiles, d *done) error {
	switch s.action {
	case actionPut:
		if err := own.put(s.path, s.text); err != nil {
			return fmt.Errorf("install %s: %w", s.path, err)
		}
		d.put = append(d.put, s.path)
	case actionRemove:
		if err := own.remove(s.path); err != nil {
			return fmt.Errorf("remove %s: %w", s.path, err)
		}
		d.removed = append(d.removed, s.path)
	case actionForget:
		if err := own.forget(s.path); err != nil {
			return err
		}
		if s.state != ownMissing {
			d.notOurs = append(d.notOurs, s.path)
		}
	case actionNone:
	}
	return nil
}
