package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

// newVerifyCommand returns 'dxctl verify'. version is that of dxctl.
func newVerifyCommand(version string) *cobra.Command {
	o := gpuSelection{Request: "all"}
	client := ctr{timeout: 2 * time.Minute}
	command := &cobra.Command{
		Use:   "verify [flags] [-- COMMAND [ARGUMENT...]]",
		Short: "Start containers with GPUs, and find the driver files that this node refuses",
		Long: `Starts short-lived containers with ctr and removes them: without a GPU, with the interlock,
with the GPUs alone, with their drivers' files, and as configured. If files are refused,
finds out which. Changes no configuration. 'dxctl doctor --report' includes the result.

Fails if containers with GPUs do not start as configured, or one with the interlock does.`,
		Example: `  dxctl verify --gpus 0
  dxctl verify --image mcr.microsoft.com/windows/nanoserver:ltsc2025 -- cmd.exe`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			client.command = args
			return verify(c.Context(), &o, &client, version, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	o.AddRequestFlag(flags, "GPUs of the containers")
	flags.StringVar(&client.image, "image", "", "`IMAGE` on the node (default: its pause image)")
	flags.StringVar(&client.runtime, "runtime", "", "containerd's `RUNTIME` (default: runhcs on Windows, elsewhere the runtime shim, or without it runc)")
	flags.StringSliceVar(&client.program, "ctr", []string{"ctr"}, "containerd's client `PROGRAM`, with its first arguments, such as k0s,ctr")
	flags.StringVar(&client.namespace, "containerd-namespace", "k8s.io", "`NAMESPACE` of the image and the containers")
	flags.StringVar(&client.socket, "cri-socket", paths.Default().CRI, "containerd's CRI `SOCKET` or named pipe")
	flags.StringVar(&o.StateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	return command
}

// verify starts the containers, prints the results, and keeps them for 'dxctl doctor --report'.
func verify(ctx context.Context, o *gpuSelection, client *ctr, version string, stdout, stderr io.Writer) error {
	if err := client.prepare(ctx); err != nil {
		return err
	}
	present, p, err := o.Devices(ctx, stderr, runtime.GOOS)
	if err != nil {
		return err
	}
	devices, err := decision.Select(o.Request, present)
	if err != nil {
		return err
	}
	withFiles := p
	withFiles.DriverFiles = policy.FilesMount
	edits, _, err := gpuedits.Build(runtime.GOOS, devices, nil, hostfiles.Root(""), withFiles)
	if err != nil {
		return err
	}
	configured, _, err := gpuedits.Build(runtime.GOOS, devices, nil, hostfiles.Root(""), p)
	if err != nil {
		return err
	}

	var report bytes.Buffer
	client.out = io.MultiWriter(stdout, &report)
	fmt.Fprintf(&report, "dxctl %s on %s %d at %s: image %s, runtime %s, driverFiles: %s\n",
		version, runtime.GOOS, win32.WindowsBuild(), time.Now().UTC().Format(time.RFC3339), client.image, client.runtime, p.DriverFiles)
	refused, err := startWithFiles(ctx, client, edits)
	if err == nil {
		err = startConfigured(ctx, client, configured, len(refused) > 0)
	}
	fmt.Fprintln(&report, errlog.Text(err))
	return errors.Join(err, access.MakePrivate(o.StateDir),
		durable.Replace(filepath.Join(o.StateDir, paths.VerifyFile), report.Bytes(), 0o600))
}

// startWithFiles starts containers without a GPU, with the interlock, and with GPUs and driver files, which
// edits have. It returns the files that this node refuses. After an error, GPUs do not work.
func startWithFiles(ctx context.Context, client *ctr, edits ocispec.Edits) (refused []specs.Mount, err error) {
	if err := client.startEdited(ctx, "without a GPU", ocispec.Edits{}); err != nil {
		return nil, cli.UnknownResult(fmt.Errorf("a container without a GPU does not start, so GPUs cannot be tested: %w", err))
	}
	err = client.startEdited(ctx, "with the interlock, which must be refused", interlockEdits(runtime.GOOS))
	if err == nil {
		return nil, errors.New("a container starts in spite of the interlock: this node must not offer GPUs")
	}
	if !isRefusal(err) {
		return nil, err
	}
	files := edits.Mounts
	startWith := func(mounts []specs.Mount) error {
		edits.Mounts = mounts
		return client.startEdited(ctx, fmt.Sprintf("with GPUs and %d of %d driver files", len(mounts), len(files)), edits)
	}
	if err := startWith(nil); err != nil {
		return nil, fmt.Errorf("containers with GPUs do not start, even without driver files: %w", err)
	}
	refused, err = findRefused(files, startWith)
	for _, m := range refused {
		fmt.Fprintf(client.out, "\nThis node refuses %s.\n", m.Source)
	}
	return refused, err
}

// startConfigured starts a container with the edits that are configured on the node.
func startConfigured(ctx context.Context, client *ctr, configured ocispec.Edits, refusesFiles bool) error {
	err := client.startEdited(ctx, "as configured", configured)
	if err == nil {
		fmt.Fprintln(client.out, "\ncontainers with GPUs start as configured")
		return nil
	}
	err = fmt.Errorf("containers with GPUs do not start as configured: %w", err)
	if refusesFiles && runtime.GOOS == "windows" { // Linux has no such settings.
		err = errlog.WithRemedy(err, "set driverFiles: none, or name the refused files in runtimeFiles.VENDOR.remove")
	}
	return err
}

// findRefused returns the files with which a container does not start: it tries each half of a list that is
// refused together with the files that were accepted before. Of files that are refused only together, it
// returns the last one. start starts a container with files.
func findRefused(files []specs.Mount, start func(files []specs.Mount) error) (refused []specs.Mount, err error) {
	var accepted []specs.Mount
	for pending := [][]specs.Mount{files}; len(files) > 0 && len(pending) > 0; {
		list, half := pending[0], len(pending[0])/2
		err := start(slices.Concat(accepted, list))
		switch {
		case err == nil:
			accepted, pending = append(accepted, list...), pending[1:]
		case !isRefusal(err):
			return nil, err
		case half > 0:
			pending = slices.Replace(pending, 0, 1, list[:half], list[half:])
		default:
			refused, pending = append(refused, list...), pending[1:]
		}
	}
	if len(refused) > 0 {
		if err := start(accepted); err != nil {
			return nil, cli.UnknownResult(fmt.Errorf("containers that started before do not start anymore, so the result means nothing: %w", err))
		}
	}
	return refused, nil
}

// interlockEdits returns the edits that the kubelet makes for an allocation.
func interlockEdits(nodeOS string) ocispec.Edits {
	if nodeOS == "windows" {
		return ocispec.Edits{WindowsDevices: []specs.WindowsDevice{
			{ID: allocation.InterlockDeviceID, IDType: allocation.InterlockDeviceType},
		}}
	}
	return ocispec.Edits{Mounts: []specs.Mount{ocispec.ReadOnlyMount(nodeOS, allocation.InterlockSource, allocation.InterlockMount)}}
}
