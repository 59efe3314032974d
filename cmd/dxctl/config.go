package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/discovery/nvidia"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// newConfigCommand returns 'dxctl config'.
func newConfigCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "config",
		Short: "Apply and check the configuration of a node",
	}
	command.AddCommand(newConfigApplyCommand(), newConfigCheckCommand())
	return command
}

func newConfigApplyCommand() *cobra.Command {
	defaults := paths.Default()
	var c config.Compiler
	command := &cobra.Command{
		Use:   "apply",
		Short: "Make the configuration file the node policy in force",
		Long: `Compiles the configuration file and its inventory. If one is invalid, or can be written by
users who are not administrators, nothing changes. A running directx-advertiser does this
itself, with its own flags. Without flags, those of the policy in force apply again.`,
		Example: `  # a node for ctr and nerdctl, with an inventory and no configuration file
  dxctl config apply --inventory /etc/directx-nri/gpus.yaml`,
		RunE: func(command *cobra.Command, _ []string) (err error) {
			if c.Flags, err = config.ReadFlags(command.Flags()); err != nil {
				return cli.UsageError("%w", err)
			}
			c.Required = command.Flags().Changed("config")
			return applyConfig(command, c)
		},
	}
	flags := command.Flags()
	flags.StringVar(&c.File, "config", defaults.Config, "configuration `FILE`; optional at the default path")
	flags.StringVar(&c.StateDir, "state-dir", defaults.State, "state `DIRECTORY`")
	addNodeOS(command, &c.NodeOS)
	config.AddFlags(flags)
	return command
}

// applyConfig applies the configuration that c selects, or if it has no flags, that of the policy in force.
func applyConfig(command *cobra.Command, c config.Compiler) error {
	before, _ := policy.Read(c.StateDir) // An error is no failure, because Apply replaces the policy.
	from := before.CompiledFrom
	// The directory does not exist here if the policy was compiled in a pod.
	if !c.Required && len(c.Flags) == 0 && from.Config != "" && durable.Exists(filepath.Dir(from.Config)) {
		c.File, c.Required, c.Flags = from.Config, from.Config != paths.Default().Config, from.Flags
	}
	compiled, err := c.Apply()
	if err != nil {
		return err
	}
	found, gpusErr := saveGPUs(command.Context(), c, compiled.Policy)
	_, err = fmt.Fprintf(command.OutOrStdout(), "applied: %s%s\n", policySummary(compiled), found)
	return errors.Join(gpusErr, err)
}

// saveGPUs discovers the GPUs and saves them for the programs that start containers, unless those
// discover the GPUs themselves. It returns a phrase about the GPUs.
func saveGPUs(ctx context.Context, c config.Compiler, p policy.Policy) (string, error) {
	if p.UseInventory || runtime.GOOS == "windows" {
		return "", nil
	}
	source, err := node.Open(node.Options{StateDir: c.StateDir, UUIDs: nvidia.NewUUIDs("")})
	if err != nil {
		return "; " + err.Error(), nil
	}
	devices, err := source.Devices(ctx)
	if err == nil {
		err = node.Discovered(c.StateDir).Write(devices)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("; %d GPU(s) discovered", len(devices)), nil
}

// policySummary returns a phrase with a policy's resources and the GPUs of its inventory.
func policySummary(c config.Compiled) string {
	p := c.Policy
	var names []string
	for _, r := range p.Resources {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	text := fmt.Sprintf("%s by %d rule(s)", strings.Join(names, ", "), len(p.Resources))
	if p.UseInventory {
		text += fmt.Sprintf("; %d GPU(s) in %s", len(c.Devices), p.CompiledFrom.Inventory)
	}
	return text
}

func addNodeOS(command *cobra.Command, nodeOS *string) {
	*nodeOS = runtime.GOOS
	cli.AddChoice(command, nodeOS, "node-os", "operating `SYSTEM` of the node's containers", "windows", "linux")
}

func newConfigCheckCommand() *cobra.Command {
	c := config.Compiler{File: paths.Default().Config, StateDir: paths.Default().State}
	command := &cobra.Command{
		Use:   "check [FILE...]",
		Short: "Check configuration files and inventories",
		Long: `Prints the errors in configuration files and inventories, with their keys. The files can
be for other machines. Without FILE, checks this node's file and its inventory, and that
only administrators can write them.`,
		Example: `  dxctl config check
  dxctl config check config.yaml gpus.yaml
  dxctl config check --node-os windows windows.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) (err error) {
			if len(args) == 0 {
				return checkFile(command.OutOrStdout(), c)
			}
			c.Required, c.InspectOnly = true, true
			for _, c.File = range args {
				err = errors.Join(err, checkFile(command.OutOrStdout(), c))
			}
			return err
		},
	}
	addNodeOS(command, &c.NodeOS)
	return command
}

// checkFile checks the configuration or the inventory in the file of c.
func checkFile(stdout io.Writer, c config.Compiler) error {
	var result string
	if config.IsInventory(c.File) {
		devices, _, err := c.ReadInventory(c.File)
		if err != nil {
			return err
		}
		result = fmt.Sprintf("%d GPU(s)", len(devices))
	} else {
		compiled, err := c.Compile()
		if err != nil {
			return err
		}
		result = policySummary(compiled)
	}
	_, err := fmt.Fprintf(stdout, "%s is valid: %s\n", c.File, result)
	return err
}
