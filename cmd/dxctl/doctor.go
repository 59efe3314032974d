package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/discovery"
	"directx-nri/discovery/live"
	"directx-nri/internal/cli"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/paths"
	"directx-nri/internal/shimfile"
)

type doctorOptions struct {
	target
	gpuSource
	// Those of target and gpuSource, and these, are where things are.
	shim            string
	runtimeDir      string
	nriSocket       string
	kubeletDir      string
	podResources    string
	containerdState string

	role, servedBy string
	output         string
	timeout        time.Duration
	bundle         string
	force          bool
}

// asText is the form of the output for a person.
const asText = "text"

func newDoctorCommand() *cobra.Command {
	places := paths.Default()
	o := doctorOptions{target: target{os: runtime.GOOS}}
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Look what is wrong with this node, and say what to do",
		Long: `Looks at the node from end to end: GPUs, their drivers and files, containerd and
its configuration, the runtime shim, the NRI plugin, the kubelet, the advertiser,
the allocation records, and who can write our folders. For each thing that is
wrong it says what it is, what comes of it, and what to do. Nothing is changed.

What the node is for is told from what is there: with a kubelet's folder for
device plugins it is a node of Kubernetes, and its pods get their GPUs by the NRI
plugin where NRI is on, and by the runtime shim where runtime handlers go through
it, unless config.yaml says servedBy: shim or injection: kubelet. --role and
--served-by say otherwise. Notes tell of what is no fault, and may explain something.

Run it as root, on Windows as an administrator: it says what it may not look at.

Exit status: 0 when nothing is wrong, 1 when something is, 2 when nothing is known
to be wrong and something could not be looked at.`,
		Example: `  dxctl doctor

  # for programs; the names of the fields stay
  dxctl doctor -o json

  # what a maintainer needs to help, without secrets; look at it before you send it
  dxctl doctor --support-bundle node1.zip`,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	o.target.addFlags(flags)
	o.addInventory(flags)
	o.addShimConfig(flags)
	flags.StringVarP(&o.output, "output", "o", asText, "form of the output: text or json")
	flags.StringVar(&o.role, "role", string(doctor.RoleAuto), "what the node is for: kubernetes, standalone, or auto")
	flags.StringVar(&o.servedBy, "served-by", string(doctor.ServedByAuto), "who gives pods their GPUs, as the advertiser is told by --served-by or --injection: nri, shim, kubelet, or auto")
	flags.DurationVar(&o.timeout, "timeout", 5*time.Second, "how long each question may take")
	flags.StringVar(&o.bundle, "support-bundle", "", "write a zip file with what a maintainer needs, without secrets")
	flags.BoolVar(&o.force, "force", false, "replace the file of --support-bundle when it is there")
	flags.StringVar(&o.stateDir, "state-dir", "", "folder of the allocation records (default: as in config.yaml)")
	flags.StringVar(&o.runtimeDir, "runtime-dir", places.Runtime, "folder of the socket by which the NRI plugin is seen to be there; the same as the plugin's")
	flags.StringVar(&o.shim, "shim", filepath.Join(places.ShimDir, shimfile.FileName(runtime.GOOS)), "our runtime shim, where containerd finds none by its name")
	flags.StringVar(&o.nriSocket, "nri-socket", places.NRI, "containerd's NRI socket")
	flags.StringVar(&o.kubeletDir, "kubelet-dir", places.DevicePlugins, "the kubelet's folder for device plugins")
	flags.StringVar(&o.podResources, "pod-resources-socket", places.PodResources, "the kubelet's PodResources socket or named pipe")
	flags.StringVar(&o.containerdState, "containerd-state", places.ContainerdState, "containerd's state folder")
	return command
}

func (o *doctorOptions) checkFlags() error {
	switch {
	case o.output != asText && o.output != outputJSON:
		return cli.Usage("--output %q is neither %s nor %s", o.output, asText, outputJSON)
	case o.role != string(doctor.RoleAuto) && o.role != string(doctor.RoleKubernetes) && o.role != string(doctor.RoleStandalone):
		return cli.Usage("--role %q is none of kubernetes, standalone, auto", o.role)
	case o.servedBy != string(doctor.ServedByAuto) && o.servedBy != string(doctor.ServedByNRI) && o.servedBy != string(doctor.ServedByShim) && o.servedBy != string(doctor.ServedByKubelet):
		return cli.Usage("--served-by %q is none of nri, shim, kubelet, auto", o.servedBy)
	case o.servedBy == string(doctor.ServedByNRI) && o.os == "windows":
		return cli.Usage("--served-by nri is not possible on Windows: containerd calls no NRI plugin there")
	case o.force && o.bundle == "":
		return cli.Usage("--force has no use without --support-bundle")
	}
	if err := checkTimeout(o.timeout); err != nil {
		return err
	}
	return o.check()
}

func (o *doctorOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.checkFlags(); err != nil {
		return err
	}
	if err := o.checkBundle(); err != nil {
		return err
	}
	facts := doctor.Gather(ctx, o.node())
	if err := ctx.Err(); err != nil {
		return cli.WithStatus(exitUnknown, fmt.Errorf("look at the node: %w", err))
	}
	verdict := doctor.Examine(facts)
	if err := o.print(stdout, facts, verdict); err != nil {
		return err
	}
	if o.bundle != "" {
		if err := o.writeBundle(ctx, stderr, facts, verdict); err != nil {
			return err
		}
	}
	switch verdict.Result() {
	case doctor.Findings:
		return errors.New("something is wrong with this node: see what is said above")
	case doctor.NotKnown:
		return cli.WithStatus(exitUnknown, errors.New("not all of this node could be looked at: see what is said above"))
	}
	return nil
}

// checkBundle returns an error where the support bundle may not be written. What
// is no ordinary file, such as /dev/null, is never replaced.
func (o *doctorOptions) checkBundle() error {
	if o.bundle == "" {
		return nil
	}
	info, err := os.Lstat(o.bundle)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return cli.Usage("%s is there and no ordinary file: name another", o.bundle)
	case err == nil && !o.force:
		return cli.Usage("%s is there already: name another file, or say --force to replace it", o.bundle)
	}
	return nil
}

func (o *doctorOptions) print(stdout io.Writer, facts doctor.Facts, verdict doctor.Verdict) error {
	if o.output == outputJSON {
		return verdict.Report(facts).PrintJSON(stdout)
	}
	return verdict.Print(stdout, terminal.Of(stdout, os.Getenv))
}

// node says where things are.
func (o *doctorOptions) node() doctor.Node {
	node := doctor.Node{
		OS: o.os, Version: knownVersion(cli.Version(version)), Role: doctor.Role(o.role), ServedBy: doctor.ServedBy(o.servedBy),
		ShimConfig: o.file, Inventory: o.inventory, StateDir: o.stateDir, RuntimeDir: o.runtimeDir, Shim: o.shim,
		ContainerdConfig: o.config, ContainerdMajor: o.major, ContainerdState: o.containerdState,
		CRISocket: o.criSocket, NRISocket: o.nriSocket, KubeletDir: o.kubeletDir, PodResources: o.podResources,
		Devices: devicesOf, Changed: changed, Installed: installed, Failed: failedConfigure, Overrides: o.overrides, Timeout: o.timeout,
	}
	if o.stateDir == "" {
		node.ConfigureDir = paths.Default().State
	}
	return node
}

// knownVersion returns "" for a version that is none, such as that of a program
// which was built without one: then there is nothing to compare.
func knownVersion(text string) string {
	if text == "unknown" || text == "(devel)" {
		return ""
	}
	return text
}

// devicesOf lists the GPUs of an inventory file as it is now, or with "" those of
// the node.
func devicesOf(ctx context.Context, inventory string) ([]discovery.Device, error) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	source, err := live.Open(inventory, log)
	if err != nil {
		return nil, err
	}
	return source.Devices(ctx)
}

// changed tells what is left of 'runtime configure' and 'runtime unconfigure'.
func changed(config, state string) doctor.Leftovers {
	var l doctor.Leftovers
	journal := filepath.Join(state, journalName)
	if _, err := os.Lstat(journal); err == nil {
		l.Journal = journal
	} else if errors.Is(err, fs.ErrPermission) {
		l.Journal, l.JournalErr = journal, err
		return l
	}
	managed, err := openManaged(config, state)
	switch {
	case err != nil && l.Journal != "":
		l.JournalErr = err
	case err != nil:
		// That containerd's file cannot be read is told elsewhere.
	case l.Journal != "":
		l.Applied = managed.applied()
	default:
		if _, err := os.Lstat(managed.backupPath()); err == nil {
			l.Backup = managed.backupPath()
		}
	}
	return l
}

// installed tells how the files are now that 'config install' has written.
func installed(state string) doctor.Installed {
	var i doctor.Installed
	own, err := openOwnFiles(state)
	if err != nil {
		i.Record, i.Err = filepath.Join(state, ownFilesName), err
		return i
	}
	for _, path := range own.paths() {
		i.Record = own.path()
		switch state, _, err := own.look(path); {
		case err != nil: // That it cannot be read is told elsewhere.
		case state == ownMissing:
			i.Missing = append(i.Missing, path)
		case state == ownChanged:
			i.Changed = append(i.Changed, path)
		}
	}
	return i
}

// overrides is what imports returns, a line each: which imported files take the
// place of what is configured, and which cannot be used.
func (o *doctorOptions) overrides(f containerdconfig.File, node containerdconfig.Node) (sound, broken []string) {
	err := o.imports(f, node)
	if err == nil {
		return nil, nil
	}
	each := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		each = joined.Unwrap()
	}
	for _, err := range each {
		if errors.Is(err, errOverridden) {
			sound = append(sound, err.Error())
		} else {
			broken = append(broken, err.Error())
		}
	}
	return sound, broken
}
