package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/discovery/nvidia"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
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
	if reason := unusableReason(compiled, c.NodeOS); reason != "" {
		inventory := compiled.Policy.CompiledFrom.Inventory
		fmt.Fprintf(command.ErrOrStderr(), "dxctl: warning: this node's containers can have no GPU of %s: %s\n", inventory, reason)
	}
	_, err = fmt.Fprintf(command.OutOrStdout(), "applied: %s%s\n", policySummary(compiled), found)
	return errors.Join(gpusErr, err)
}

// unusableReason returns why containers of nodeOS can have no GPU of the inventory, "" if they can have one or there is
// no inventory.
func unusableReason(c config.Compiled, nodeOS string) (reason string) {
	for _, d := range resources.Match(c.Devices, policy.Default(), nodeOS) {
		if d.Rule != nil {
			return ""
		}
		reason = d.Reason
	}
	return reason
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
	cli.AddChoice(command, nodeOS, "node-os", "", "operating `SYSTEM` of the node's containers", "windows", "linux")
}

func newConfigCheckCommand() *cobra.Command {
	c := config.Compiler{File: paths.Default().Config, StateDir: paths.Default().State}
	command := &cobra.Command{
		Use:   "check [FILE...]",
		Short: "Check configuration files and inventories",
		Long: `Prints what is valid, and each error in configuration files and inventories with its key.
The files can be for other machines; - is standard input. Without FILE, checks this node's
file and its inventory, and that only administrators can write them.`,
		Example: `  dxctl config check
  dxctl config check config.yaml gpus.yaml
  dxctl config check --node-os windows windows.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) (err error) {
			if c.Stdin, err = readStdin(command, args...); err != nil {
				return err
			}
			files := []string{c.File}
			if len(args) > 0 {
				files, c.Required, c.InspectOnly = args, true, true
			}
			var findings []finding
			for _, c.File = range files {
				findings = append(findings, checkFile(c)...)
			}
			printFindings(command.OutOrStdout(), findings)
			if slices.ContainsFunc(findings, func(f finding) bool { return f.mark == markFailed }) {
				return errors.New("the configuration is invalid")
			}
			return nil
		},
	}
	addNodeOS(command, &c.NodeOS)
	return command
}

// checkFile returns what the configuration or the inventory in the file of c has, or a finding for each of its errors.
func checkFile(c config.Compiler) (findings []finding) {
	summary, err := readFile(c)
	if err == nil {
		return []finding{{markPassed, c.File, summary}}
	}
	_, text, _ := strings.Cut(err.Error(), c.File+": ")
	for line := range strings.SplitSeq(cmp.Or(text, err.Error()), "\n") {
		f := failed(errors.New(line), errlog.RemedyOf(err))[0]
		f.check = c.File
		findings = append(findings, f)
	}
	return findings
}

// readFile returns a phrase about the configuration or the inventory in the file of c.
func readFile(c config.Compiler) (string, error) {
	if c.IsInventory(c.File) {
		devices, _, err := c.ReadInventory(c.File)
		return fmt.Sprintf("%d GPU(s)", len(devices)), err
	}
	compiled, err := c.Compile()
	return policySummary(compiled), err
}
