package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/cmd/dxctl/doctor"
	"github.com/directx-nri/directx-nri/cmd/dxctl/gpus"
	"github.com/directx-nri/directx-nri/cmd/dxctl/nodesetup"
	"github.com/directx-nri/directx-nri/cmd/dxctl/printer"
	"github.com/directx-nri/directx-nri/cmd/dxctl/statefile"
	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/capabilities"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/shimfile"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/runflags"
)

type verifyOptions struct {
	gpus.Node
	gpus.Selection
	ctr
	force      bool
	reportFile string

	stdout    io.Writer
	report    verifyReport
	devices   []discovery.Device
	all, none ocispec.Edits // with and without the drivers' files
}

func newVerifyCommand() *cobra.Command {
	var o verifyOptions
	command := &cobra.Command{
		Use:   "verify [flags] [-- COMMAND [ARGUMENT...]]",
		Short: "Start containers with GPUs, and find the driver files that this node refuses",
		Long: `Starts short containers with containerd's client ctr and removes them: without a GPU, with
the interlock, with the GPUs alone, with their drivers' files, and as configured. If the files
are refused, finds out which, and prints the settings with which containers start. Changes no
configuration. 'dxctl doctor --report' includes the result.

Fails if containers with GPUs do not start as configured, or one starts in spite of the
interlock.`,
		Example: `  dxctl verify --index 0 --report verify.json
  dxctl verify --image mcr.microsoft.com/windows/nanoserver:ltsc2025 -- cmd.exe`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			o.command, o.stdout = args, c.OutOrStdout()
			return o.run(c.Context(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	o.Selection.AddFlags(command, &o.Node)
	o.ctr.addFlags(flags)
	flags.StringVar(&o.StateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	flags.BoolVar(&o.force, "force", false, "continue although pods have GPUs")
	flags.StringVar(&o.reportFile, "report", "", "write a new `FILE` with the result")
	return command
}

// verifyReport is the result. The names of its fields are stable.
type verifyReport struct {
	Version     string             `json:"version"`
	OS          string             `json:"os"`
	Build       uint32             `json:"build,omitempty"` // of Windows
	At          time.Time          `json:"at"`
	Image       string             `json:"image"`
	Runtime     string             `json:"runtime"`
	DriverFiles policy.DriverFiles `json:"driverFiles"` // the mode in force
	Devices     []gpus.Report      `json:"devices"`
	// Containers are those that were started, in order, each with its result.
	Containers []string `json:"containers"`
	// Refused are driver files with which containers do not start.
	Refused []specs.Mount `json:"refused,omitempty"`
	// Works reports whether containers with GPUs start as configured. Settings are those
	// without the refused files, best first.
	Works    bool     `json:"works"`
	Reason   string   `json:"reason"`
	Settings []string `json:"settings,omitempty"`
}

// verifyPath returns the file with the last result.
func verifyPath(state string) string { return filepath.Join(state, nodesetup.VerifyFile) }

func (o *verifyOptions) run(ctx context.Context, stderr io.Writer) error {
	if o.reportFile != "" && durable.Exists(o.reportFile) {
		return cli.Usage("--report: %s exists", o.reportFile)
	}
	if err := o.prepare(ctx, stderr); err != nil {
		return err
	}
	err := o.measure(ctx)
	r := &o.report
	switch {
	case ctx.Err() != nil:
		return cli.Unknown(err)
	case err != nil:
		r.Reason, err = err.Error(), cli.Unknown(err)
	case !r.Works:
		err = errors.New(r.Reason)
	default:
		fmt.Fprintf(o.stdout, "\n%s\n", r.Reason)
	}
	for _, m := range r.Refused {
		fmt.Fprintf(o.stdout, "\nThis node refuses %s.\n", m.Source)
	}
	if !r.Works && len(r.Settings) > 0 {
		fmt.Fprintf(o.stdout, "\nContainers start with this in config.yaml:\n\n%s", strings.Join(r.Settings, "\nor:\n\n"))
	}
	var text bytes.Buffer
	err = errors.Join(err, statefile.Write(verifyPath(o.StateDir), r), printer.Document(&text, printer.JSON, r))
	if o.reportFile != "" {
		err = errors.Join(err, durable.Create(o.reportFile, doctor.Redact(text.Bytes()), 0o600))
	}
	return err
}

func (o *verifyOptions) prepare(ctx context.Context, stderr io.Writer) error {
	if err := o.Check(); err != nil {
		return err
	}
	if err := o.checkUnused(ctx, stderr); err != nil && !o.force {
		return fmt.Errorf("%w; --force continues", err)
	}
	if err := o.ctr.prepare(ctx); err != nil {
		return err
	}
	source, p, err := o.Open(stderr)
	if err != nil {
		return err
	}
	present, err := source.Devices(ctx)
	if err == nil {
		o.devices, err = decision.Select(cmp.Or(o.Request(), "all"), present)
	}
	p = capabilities.InForce(p, runtime.GOOS)
	o.report = verifyReport{
		Version: cli.Version(version), OS: runtime.GOOS, Build: capabilities.Build(), At: time.Now().UTC(), Image: o.image, Runtime: o.runtime,
		DriverFiles: p.DriverFiles, Devices: gpus.NewReports(present, p, runtime.GOOS),
	}
	for mode, edits := range map[policy.DriverFiles]*ocispec.Edits{policy.FilesMount: &o.all, policy.FilesNone: &o.none} {
		if p.DriverFiles = mode; err == nil {
			*edits, _, err = ocispec.BuildEdits(ocispec.OS(runtime.GOOS), o.devices, nil, new(gpus.DriverFiles).Files(), ocispec.NewOptions(p))
		}
	}
	return err
}

// checkUnused returns an error if pods have GPUs, or if that is unknown.
func (o *verifyOptions) checkUnused(ctx context.Context, stderr io.Writer) error {
	entries, problems, err := allocation.OpenStore(paths.Allocations(o.StateDir)).List(ctx)
	for _, p := range problems {
		err = errors.Join(err, p.Err)
	}
	list := allocationsOptions{criSocket: o.socket}
	pods := list.pods(ctx, stderr, entries)
	for _, e := range entries {
		if state, _ := stateOf(e, pods); state != stateStale && err == nil {
			err = errors.New("pods have GPUs: 'dxctl allocations' lists them")
		}
	}
	return err
}

// measure starts the containers. An error means that the result is unknown.
func (o *verifyOptions) measure(ctx context.Context) error {
	os, r := ocispec.OS(runtime.GOOS), &o.report
	plain, err := o.start(ctx, "without a GPU", ocispec.Edits{})
	if plain != "" {
		err = fmt.Errorf("a container without a GPU does not start, so nothing is known of GPUs: %s", plain)
	}
	if err != nil {
		return err
	}
	interlock := ocispec.Edits{Mounts: []specs.Mount{ocispec.ReadOnlyMount(os, allocation.InterlockSource, allocation.InterlockMount)}}
	if os == ocispec.Windows {
		interlock = ocispec.Edits{WindowsDevices: []specs.WindowsDevice{{ID: allocation.InterlockDeviceID, IDType: allocation.InterlockDeviceType}}}
	}
	locked, err := o.start(ctx, "with the interlock, which must be refused", interlock)
	if err != nil {
		return err
	}
	edits, files := o.all, o.all.Mounts
	with := func(list []specs.Mount) (refused string, err error) {
		edits.Mounts = list
		return o.start(ctx, fmt.Sprintf("with GPUs and %d of %d driver files", len(list), len(files)), edits)
	}
	alone, err := with(nil)
	if err == nil && alone == "" {
		if r.Refused, err = findRefused(files, with); err == nil && os == ocispec.Windows { // Linux has no such settings.
			r.Settings = settings(r.Refused, o.none.Mounts, o.devices)
		}
	}
	if err != nil {
		return err
	}
	edits = o.all
	if r.DriverFiles == policy.FilesNone {
		edits = o.none
	}
	var request []string
	if o.runtime == shimfile.RuntimeName {
		request = gpus.ShimFlags(os, cmp.Or(o.Request(), "all"))
	}
	configured, err := o.start(ctx, "as configured", edits, request...)
	switch {
	case locked == "":
		r.Reason = "a container starts in spite of the interlock: this node must not offer GPUs"
	case alone != "":
		r.Reason = "containers with GPUs do not start, even without driver files: " + alone
	case configured != "":
		r.Reason = "containers with GPUs do not start as configured: " + configured
	default:
		r.Works, r.Reason = true, "containers with GPUs start as configured"
		if r.DriverFiles == policy.FilesNone && len(r.Refused) == 0 {
			r.Reason += ", and with driverFiles: mount"
		}
	}
	return err
}

// start starts a container with edits, or with flags of ctr, again if that fails, as it can
// after a boot. It prints the result.
func (o *verifyOptions) start(ctx context.Context, what string, edits ocispec.Edits, flags ...string) (refused string, err error) {
	if flags == nil {
		edits.Env = []string{decision.VisibleVariable + "=none"} // The runtime shim makes no further edits.
		flags, err = runflags.Flags(runflags.Ctr, ocispec.OS(runtime.GOOS), edits, new(gpus.DriverFiles).Files())
	}
	if err == nil {
		refused, err = o.ctr.start(ctx, flags)
	}
	if err == nil && refused != "" {
		refused, err = o.ctr.start(ctx, flags)
	}
	if err != nil {
		return "", err
	}
	line := "starts   " + what
	if refused != "" {
		line = "refused  " + what + ": " + cli.Printable(refused)
	}
	fmt.Fprintln(o.stdout, line)
	o.report.Containers = append(o.report.Containers, line)
	return refused, nil
}

// findRefused returns those of files with which a container does not start. It starts with
// all others together. start returns why a container with files does not start, "" if it
// does; without files it has started.
//
// A list that is refused is halved, and each half tried with the files accepted before it. Of
// files that are refused only together, the last is returned.
func findRefused(files []specs.Mount, start func(files []specs.Mount) (refused string, err error)) (refused []specs.Mount, err error) {
	var accepted []specs.Mount
	for pending := [][]specs.Mount{files}; len(pending) > 0 && len(files) > 0; {
		list, half := pending[0], len(pending[0])/2
		why, err := start(slices.Concat(accepted, list))
		switch {
		case err != nil:
			return nil, err
		case why == "":
			accepted, pending = append(accepted, list...), pending[1:]
		case half > 0:
			pending = slices.Replace(pending, 0, 1, list[:half], list[half:])
		default:
			refused, pending = append(refused, list...), pending[1:]
		}
	}
	if len(refused) > 0 {
		var why string
		if why, err = start(accepted); why != "" {
			err = fmt.Errorf("containers that started before do not start anymore, so the result means nothing: %s", why)
		}
	}
	return refused, err
}

// settings returns settings without the refused files: without driver files, of which only
// those in none remain, and with all others.
func settings(refused, none []specs.Mount, devices []discovery.Device) (list []string) {
	if len(refused) == 0 {
		return nil
	}
	if !slices.ContainsFunc(none, func(m specs.Mount) bool {
		return slices.ContainsFunc(refused, func(r specs.Mount) bool { return r.Destination == m.Destination })
	}) {
		list = append(list, "driverFiles: none\n")
	}
	remove := map[string]map[string][]string{}
	for _, m := range refused {
		i := slices.IndexFunc(devices, func(d discovery.Device) bool {
			return d.VendorID != 0 && d.DriverStorePath != "" && winpath.Within(d.DriverStorePath, m.Source)
		})
		if i < 0 {
			return list // It cannot be named.
		}
		path := winpath.Elements(m.Source)[len(winpath.Elements(devices[i].DriverStorePath)):]
		vendor := strings.ToLower(devices[i].VendorID.String())
		remove[vendor] = map[string][]string{"remove": append(remove[vendor]["remove"], strings.Join(path, "/"))}
	}
	if text, err := yaml.Marshal(map[string]any{"driverFiles": policy.FilesMount, "runtimeFiles": remove}); err == nil {
		list = append(list, string(text))
	}
	return list
}
