// Package nodeconfig has the commands that apply, check and show the configuration of a node.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

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
		Short: "Apply, check and show the configuration of a node",
	}
	command.AddCommand(newConfigApplyCommand(), newConfigCheckCommand(), newConfigShowCommand())
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
		RunE: func(command *cobra.Command, _ []string) error { return applyConfig(command, c) },
	}
	flags := command.Flags()
	flags.StringVar(&c.File, "config", defaults.Config, "configuration `FILE`; optional at the default path")
	flags.StringVar(&c.StateDir, "state-dir", defaults.State, "state `DIRECTORY`")
	addNodeOS(command, &c.NodeOS)
	c.Flags.Add(command)
	return command
}

// apply applies the configuration that the command's flags select, or if there are none, that of the policy
// in force.
func applyConfig(command *cobra.Command, c config.Compiler) error {
	c.Required = command.Flags().Changed("config")
	before, readErr := policy.Read(c.StateDir) // An error is no failure, because Apply replaces the policy.
	from := before.CompiledFrom
	// The directory does not exist here if the policy was compiled in a pod.
	if !c.Required && len(c.Flags) == 0 && from.Config != "" && durable.Exists(filepath.Dir(from.Config)) {
		c.File, c.Required = from.Config, from.Config != paths.Default().Config
		if err := config.RestoreFlags(command, from); err != nil {
			return err
		}
	}
	compiled, err := c.Apply()
	if err != nil {
		return err
	}
	found, gpusErr := saveGPUs(command.Context(), c, compiled.Policy)
	verb := "applied"
	if readErr == nil && reflect.DeepEqual(before, compiled.Policy) {
		verb = "already in force"
	}
	_, err = fmt.Fprintf(command.OutOrStdout(), "%s: %s%s\n", verb, policySummary(compiled), found)
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
	var nodeOS string
	command := &cobra.Command{
		Use:   "check [FILE...]",
		Short: "Check configuration files and inventories",
		Long: `Prints the errors in configuration files and inventories, with line and key. The files can
be for other machines. Without FILE, checks this node's file and its inventory, and that
only administrators can write them.`,
		Example: `  dxctl config check
  dxctl config check config.yaml gpus.yaml
  dxctl config check --node-os windows windows.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, files []string) error {
			if len(files) == 0 {
				defaults := paths.Default()
				return checkNode(command.OutOrStdout(), config.Compiler{
					File: defaults.Config, StateDir: defaults.State, NodeOS: nodeOS,
				})
			}
			var err error
			for _, file := range files {
				err = errors.Join(err, checkFile(command.OutOrStdout(), file, nodeOS))
			}
			return err
		},
	}
	addNodeOS(command, &nodeOS)
	return command
}

// checkNode checks the configuration of this node, which need not exist.
func checkNode(stdout io.Writer, c config.Compiler) error {
	compiled, err := c.Compile()
	if err == nil && compiled.Policy.CompiledFrom.ConfigSHA256 == "" {
		_, err := fmt.Fprintf(stdout, "%s does not exist; the defaults apply: %s\n", c.File, policySummary(compiled))
		return err
	}
	return printResult(stdout, c.File, policySummary(compiled), err)
}

// checkFile checks a configuration or an inventory of any machine.
func checkFile(stdout io.Writer, file, nodeOS string) error {
	inventory, err := config.IsInventory(file)
	if err != nil {
		return err
	}
	if inventory {
		devices, _, err := config.Compiler{InspectOnly: true}.ReadInventory(file)
		return printResult(stdout, file, fmt.Sprintf("%d GPU(s)", len(devices)), err)
	}
	compiled, err := config.Compiler{
		File: file, Required: true, StateDir: paths.Default().State, NodeOS: nodeOS, InspectOnly: true,
	}.Compile()
	return printResult(stdout, file, policySummary(compiled), err)
}

func printResult(stdout io.Writer, file, policySummary string, err error) error {
	if invalid, ok := errors.AsType[config.KeyErrors](err); ok {
		fmt.Fprintln(stdout, invalid)
		return fmt.Errorf("%s: %d error(s)", invalid[0].File, len(invalid))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s is valid: %s\n", file, policySummary)
	return err
}

func newConfigShowCommand() *cobra.Command {
	var stateDir, output string
	command := &cobra.Command{
		Use:   "show",
		Short: "Show the configuration in force",
		Long: `Shows the node policy in force as a configuration file that 'dxctl config check' accepts.
YAML also names the file that it was compiled from, and marks the values that are
defaults. Warns about files that have changed since.`,
		Example: `  dxctl config show -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := policy.Read(stateDir)
			if err != nil {
				return err
			}
			for _, stale := range config.WhyStale(p, paths.Default().Config) {
				fmt.Fprintf(c.ErrOrStderr(), "warning: %s; run 'dxctl config apply', or see the log of directx-advertiser\n", stale)
			}
			return printPolicy(c.OutOrStdout(), output, p, stateDir)
		},
	}
	flags := command.Flags()
	flags.StringVar(&stateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	cli.AddOutputFlag(command, &output, cli.YAML, cli.JSON)
	return command
}

// printPolicy prints the policy in stateDir as a configuration. JSON has no comments.
func printPolicy(stdout io.Writer, output string, p policy.Policy, stateDir string) error {
	text, err := config.Render(p)
	if err != nil {
		return err
	}
	if output == cli.YAML {
		_, err := fmt.Fprintf(stdout, "# %s\n%s", origin(p, stateDir), text)
		return err
	}
	var content any
	if err := yaml.Unmarshal(text, &content); err != nil {
		return err
	}
	return cli.PrintDocument(stdout, output, content)
}

// origin returns a sentence that names what the policy in stateDir was compiled from.
func origin(p policy.Policy, stateDir string) string {
	path := policy.Path(stateDir)
	if !durable.Exists(path) {
		return path + " does not exist: the defaults are in force."
	}
	if p.CompiledFrom.ConfigSHA256 == "" {
		return path + ", compiled from flags and defaults, without a configuration file."
	}
	return path + ", compiled from " + p.CompiledFrom.Config + ", flags and defaults."
}
