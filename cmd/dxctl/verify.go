package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/win32"
)

type verifyOptions struct {
	gpuFlags
	client ctr
	force  bool
}

// newVerifyCommand returns 'dxctl verify'. version is that of dxctl.
func newVerifyCommand(version string) *cobra.Command {
	o := verifyOptions{gpuFlags: gpuFlags{Request: "all"}}
	command := &cobra.Command{
		Use:   "verify [flags] [-- COMMAND [ARGUMENT...]]",
		Short: "Start containers with GPUs, and find the driver files that this node refuses",
		Long: `Starts short-lived containers with ctr and removes them: without a GPU, with the interlock,
with the GPUs alone, with their drivers' files, and as configured. If files are refused,
finds out which, and prints the settings with which containers start. Changes no
configuration. 'dxctl doctor --report' includes the result.

Fails if containers with GPUs do not start as configured, or one with the interlock does.`,
		Example: `  dxctl verify --gpus 0
  dxctl verify --image mcr.microsoft.com/windows/nanoserver:ltsc2025 -- cmd.exe`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			o.client.command = args
			return o.run(c.Context(), version, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	o.AddRequestFlag(flags, "GPUs of the containers")
	o.client.addFlags(flags)
	flags.StringVar(&o.StateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	flags.BoolVar(&o.force, "force", false, "continue although pods have GPUs")
	return command
}

// verifyResult is the result of 'dxctl verify'. The names of its fields are stable.
type verifyResult struct {
	Version     string             `json:"version"`
	OS          string             `json:"os"`
	Build       uint32             `json:"build,omitempty"` // of Windows
	At          time.Time          `json:"at"`
	Image       string             `json:"image"`
	Runtime     string             `json:"runtime"`
	DriverFiles policy.DriverFiles `json:"driverFiles"` // the mode in force
	Devices     []gpuReport        `json:"devices"`
	// Containers describe the started containers, in order, each with its result.
	Containers []string `json:"containers"`
	// Refused are driver files with which containers do not start.
	Refused []specs.Mount `json:"refused,omitempty"`
	// Works reports whether containers with GPUs start as configured.
	Works  bool   `json:"works"`
	Reason string `json:"reason"`
	// Settings are settings with which containers do not get the refused files, the recommended one
	// first.
	Settings []string `json:"settings,omitempty"`
}

func (o *verifyOptions) run(ctx context.Context, version string, stdout, stderr io.Writer) error {
	m, err := o.prepare(ctx, version, stdout, stderr)
	if err != nil {
		return err
	}
	err = m.run(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return cli.UnknownResult(err)
	case err != nil:
		m.result.Reason = errlog.Text(err)
		err = cli.UnknownResult(err)
	case !m.result.Works:
		err = errors.New(m.result.Reason)
	}
	m.result.print(stdout)
	// 'dxctl doctor --report' reads it.
	return errors.Join(err, writeStateFile(filepath.Join(o.StateDir, paths.VerifyFile), m.result))
}

// prepare checks that no pod has GPUs, and returns the measurement.
func (o *verifyOptions) prepare(ctx context.Context, version string, stdout, stderr io.Writer) (*measurement, error) {
	if err := o.CheckRequest(); err != nil {
		return nil, err
	}
	if err := o.checkUnused(ctx); err != nil && !o.force {
		return nil, fmt.Errorf("%w; add --force to continue", err)
	}
	if err := o.client.prepare(ctx); err != nil {
		return nil, err
	}
	present, p, err := o.Devices(ctx, stderr, runtime.GOOS)
	if err != nil {
		return nil, err
	}
	devices, err := decision.Select(o.Request, present)
	if err != nil {
		return nil, err
	}
	m := &measurement{
		client: &o.client, out: stdout, nodeOS: runtime.GOOS, devices: devices,
		result: verifyResult{
			Version: version, OS: runtime.GOOS, Build: win32.WindowsBuild(), At: time.Now().UTC(),
			Image: o.client.image, Runtime: o.client.runtime,
			DriverFiles: p.DriverFiles, Devices: newGPUReports(resources.Match(present, p.Policy, runtime.GOOS)),
		},
	}
	if o.client.usesShim {
		m.shimFlags = shimFlags(m.nodeOS, o.Request)
	}
	if m.withFiles, err = m.buildEdits(p, policy.FilesMount); err != nil {
		return nil, err
	}
	m.withoutFiles, err = m.buildEdits(p, policy.FilesNone)
	return m, err
}

// checkUnused returns an error if pods have GPUs, or if that is unknown.
func (o *verifyOptions) checkUnused(ctx context.Context) error {
	entries, pods, err := readAllocations(ctx, o.StateDir, o.client.socket)
	if err != nil {
		return fmt.Errorf("it is unknown whether pods have GPUs: %w", err)
	}
	for _, e := range entries {
		if e.Holder == nil || pods[e.Holder.PodUID].Ready {
			return errors.New("pods have GPUs: 'dxctl allocations' lists them")
		}
	}
	return nil
}

func (r *verifyResult) print(w io.Writer) {
	if r.Works {
		fmt.Fprintf(w, "\n%s\n", r.Reason)
	}
	for _, m := range r.Refused {
		fmt.Fprintf(w, "\nThis node refuses %s.\n", m.Source)
	}
	if !r.Works && len(r.Settings) > 0 {
		fmt.Fprintf(w, "\nContainers start with this in config.yaml:\n\n%s", strings.Join(r.Settings, "\nor:\n\n"))
	}
}

// writeStateFile replaces a file. It creates the state directory if necessary.
func writeStateFile(path string, content any) error {
	text, err := json.MarshalIndent(content, "", "  ")
	if err == nil {
		err = access.MakePrivate(filepath.Dir(path))
	}
	if err == nil {
		err = durable.Replace(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the state file %s: %w", path, err)
	}
	return nil
}
