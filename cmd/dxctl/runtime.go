package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/shim/diversion"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

func newRuntimeCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "runtime",
		Short: "Install or remove the runtime shim",
	}
	command.AddCommand(newInstallCommand(), newUninstallCommand(), newRuntimeStatusCommand())
	return command
}

// addShimDirFlag adds the flag for the directory of the runtime shim.
func addShimDirFlag(flags *pflag.FlagSet, dir *string) {
	usage := "`DIRECTORY` of the runtime shim, in containerd's PATH"
	if runtime.GOOS == "windows" {
		usage = "`DIRECTORY` of the containerd-shim-runhcs-v1.exe that containerd runs (default: it is found)"
	}
	flags.StringVar(dir, "shim-dir", paths.Default().ShimDir, usage)
}

// openDiversion returns the diversion in dir, by default in the directory of containerd's shim.
func openDiversion(dir string) (*diversion.Diversion, error) {
	d, err := diversion.Open(dir)
	return d, errlog.WithRemedy(err, "set --shim-dir")
}

func newInstallCommand() *cobra.Command {
	var from, shimDir, configFile, stateDir string
	defaults := paths.Default()
	command := &cobra.Command{
		Use:   "install",
		Short: "Install the runtime shim, or replace it by another version",
		Long: `Tests the runtime shim and installs it; if the test fails, nothing changes. On Windows, it
takes the place of containerd's containerd-shim-runhcs-v1.exe, which it runs. containerd
needs no configuration or restart. On a node of Kubernetes, directx-advertiser does this.

On Windows, if the machine has no configuration, also lets containers request GPUs by the
environment variable DIRECTX_VISIBLE_DEVICES.`,
		Example: `  dxctl runtime install`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := install(c.Context(), c.OutOrStdout(), from, shimDir); err != nil {
				return err
			}
			err := shimfile.RecordBypass(stateDir, "") // The real shim may have changed.
			if runtime.GOOS == "windows" {
				err = errors.Join(err, allowVariable(c.OutOrStdout(), configFile, stateDir))
			}
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&from, "from", "", "the shim's `FILE` (default: "+shimfile.FileName()+" beside dxctl)")
	addShimDirFlag(flags, &shimDir)
	flags.StringVar(&stateDir, "state-dir", defaults.State, "state `DIRECTORY`")
	flags.StringVar(&configFile, "config", defaults.Config, "configuration `FILE`")
	return command
}

func install(ctx context.Context, stdout io.Writer, from, shimDir string) error {
	if from == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		from = filepath.Join(filepath.Dir(self), shimfile.FileName())
	}
	if _, err := os.Stat(from); err != nil {
		return errlog.WithRemedy(fmt.Errorf("the shim was not installed: %w", err), "set --from to the shim's file")
	}
	path, err := placeShim(ctx, from, shimDir)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "installed %s\n", path)
	return err
}

// placeShim tests the shim from, installs it, and returns its path.
func placeShim(ctx context.Context, from, shimDir string) (path string, err error) {
	if runtime.GOOS == "windows" {
		d, err := openDiversion(shimDir)
		if err != nil {
			return "", err
		}
		_, err = d.Install(ctx, from)
		return filepath.Join(d.Dir(), paths.Runhcs), err
	}
	if err := shimfile.SelfTest(ctx, from, os.TempDir()); err != nil {
		return "", err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return "", err
	}
	path = filepath.Join(shimDir, shimfile.FileName())
	return path, durable.Replace(path, data, 0o755)
}

// allowVariable makes a configuration in which standalone.environment is true the policy in force, on a machine that
// has neither a configuration nor a policy.
func allowVariable(stdout io.Writer, configFile, stateDir string) error {
	p, err := policy.Read(stateDir)
	switch {
	case err != nil || p.Standalone.Environment:
		return err
	case durable.Exists(configFile) || durable.Exists(policy.Path(stateDir)):
		_, err := fmt.Fprintf(stdout, "DIRECTX_VISIBLE_DEVICES has no effect until standalone.environment is true in %s\n", configFile)
		return err
	}
	text := "apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\nstandalone:\n    environment: true\n"
	if err := access.MakePrivate(filepath.Dir(configFile)); err != nil {
		return err
	}
	if err := durable.Create(configFile, []byte(text), 0o644); err != nil {
		return err
	}
	if _, err := (config.Compiler{File: configFile, Required: true, StateDir: stateDir, NodeOS: runtime.GOOS}).Apply(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "wrote and applied %s: containers, and images, can request GPUs by DIRECTX_VISIBLE_DEVICES\n", configFile)
	return err
}

func newUninstallCommand() *cobra.Command {
	var shimDir string
	command := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the runtime shim",
		Long: `Removes the runtime shim, on Windows by moving containerd's own back. Running containers
continue. On Linux, remove the containers of io.containerd.directx.v1 first: containerd
forgets them at its next start.`,
		Example: `  dxctl runtime uninstall`,
		RunE: func(c *cobra.Command, _ []string) error {
			return uninstall(c.Context(), c.OutOrStdout(), shimDir)
		},
	}
	addShimDirFlag(command.Flags(), &shimDir)
	return command
}

func uninstall(ctx context.Context, stdout io.Writer, shimDir string) error {
	text := ""
	if runtime.GOOS == "windows" {
		d, err := openDiversion(shimDir)
		if err != nil {
			return err
		}
		changed, err := d.Remove(ctx)
		if err != nil {
			return err
		}
		if changed {
			text = "moved containerd's " + paths.Runhcs + " back into " + d.Dir() + "\n"
		}
	} else {
		path := filepath.Join(shimDir, shimfile.FileName())
		switch err := os.Remove(path); {
		case err == nil:
			text = "removed " + path + "\n"
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	if text == "" {
		text = "there is nothing to remove\n"
	}
	_, err := io.WriteString(stdout, text)
	return err
}

func newRuntimeStatusCommand() *cobra.Command {
	var shimDir, stateDir string
	command := &cobra.Command{
		Use:     "status",
		Short:   "Show whether containerd runs the runtime shim",
		Long:    "Shows the runtime shim that containerd runs, and its version. Fails if it does not run it.",
		Example: `  dxctl runtime status`,
		RunE: func(c *cobra.Command, _ []string) error {
			path, version, err := readShim(c.Context(), shimDir)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s is the runtime shim, version %s\n", path, version)
			return errors.Join(err, shimfile.CheckBypass(stateDir))
		},
	}
	addShimDirFlag(command.Flags(), &shimDir)
	command.Flags().StringVar(&stateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	return command
}

// readShim returns the path and the version of the shim in shimDir, on Windows by default in the directory of
// containerd's shim. Its error is why containerd does not run it.
func readShim(ctx context.Context, shimDir string) (path, version string, err error) {
	path = filepath.Join(shimDir, shimfile.FileName())
	if runtime.GOOS == "windows" {
		d, err := openDiversion(shimDir)
		if err == nil {
			err = d.Check()
		}
		if err != nil {
			return "", "", err
		}
		path = filepath.Join(d.Dir(), paths.Runhcs)
	}
	version, err = readShimVersion(ctx, path)
	return path, version, err
}

// readShimVersion runs a shim and returns its version. It does not run a file that other users can replace, because
// dxctl may run with all privileges.
func readShimVersion(ctx context.Context, path string) (string, error) {
	path, err := access.CheckTrusted("/", path)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, path, "--version")
	command.WaitDelay = time.Second
	stdout, err := command.Output()
	fields := strings.Fields(string(stdout))
	switch {
	case err != nil:
		return "", fmt.Errorf("run %s --version: %w", path, cmp.Or(ctx.Err(), err))
	case len(fields) != 2 || fields[0] != shimfile.BaseName:
		return "", fmt.Errorf("%s is another program: it does not print its version as the runtime shim does", path)
	}
	return fields[1], nil
}
