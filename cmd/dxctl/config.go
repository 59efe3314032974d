package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/printer"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/config"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/shim"
)

func newConfigCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "config",
		Short: "Apply, check and show the configuration of a node",
	}
	command.AddCommand(newConfigApplyCommand(), newConfigCheckCommand(), newConfigShowCommand())
	return command
}

func newConfigApplyCommand() *cobra.Command {
	places := paths.Default()
	c := config.Compiler{OwnDirs: []string{places.Runtime, places.DevicePlugins}, CheckRuntime: shim.CheckConfigured}
	command := &cobra.Command{
		Use:   "apply",
		Short: "Make the configuration file the node policy in force",
		Long: `Compiles the configuration file and its inventory, as directx-advertiser does. If one is
invalid, or others than administrators can write it, nothing changes.`,
		Example: `  # a node for ctr and nerdctl, with an inventory and no configuration file
  dxctl config apply --inventory /etc/directx-nri/gpus.yaml`,
	}
	command.RunE = func(command *cobra.Command, _ []string) error {
		c.Required = command.Flags().Changed("config")
		return applyConfig(command.Context(), command.OutOrStdout(), c)
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&c.File, "config", places.Config, "configuration `FILE`; optional at the default path")
	flags.StringVar(&c.StateDir, "state-dir", places.State, "state `DIRECTORY`")
	flags.StringVar(&c.NodeOS, "node-os", runtime.GOOS, "operating system of the node's containers: windows or linux")
	c.Flags.Add(flags)
	return command
}

func applyConfig(ctx context.Context, stdout io.Writer, c config.Compiler) error {
	p, devices, err := c.Compile()
	if errors.As(err, new(*config.FlagError)) {
		return cli.Usage("%w", err)
	}
	if err != nil {
		return err
	}
	// An error means a damaged policy, which is replaced.
	before, readErr := policy.Read(c.StateDir)
	if err := config.Install(c.StateDir, p, devices); err != nil {
		return err
	}
	found, err := recordGPUs(ctx, c, p)
	if err != nil {
		return err
	}
	verb := "applied"
	if after, err := policy.Read(c.StateDir); readErr == nil && err == nil && reflect.DeepEqual(before, after) {
		verb = "already in force"
	}
	_, err = fmt.Fprintf(stdout, "%s: %s%s\n", verb, summary(p, devices), found)
	return err
}

// recordGPUs writes the GPUs that are discovered for the programs that start containers,
// on systems where those do not discover them, and returns a phrase about them.
func recordGPUs(ctx context.Context, c config.Compiler, p policy.Policy) (string, error) {
	if p.Inventory || runtime.GOOS == "windows" {
		return "", nil
	}
	source, err := node.Open(node.Options{StateDir: c.StateDir, Save: true})
	if err != nil {
		return "; " + err.Error(), nil
	}
	devices, err := source.Devices(ctx)
	return fmt.Sprintf("; %s discovered", plural(len(devices), "GPU")), err
}

// summary returns a policy's resources and where its GPUs come from.
func summary(p policy.Policy, devices []discovery.Device) string {
	var names []string
	for _, r := range p.Resources {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	text := fmt.Sprintf("%s by %s", strings.Join(names, ", "), plural(len(p.Resources), "rule"))
	if p.Inventory {
		text += fmt.Sprintf("; %s in %s", plural(len(devices), "GPU"), p.Source.Inventory)
	}
	return text
}

func newConfigCheckCommand() *cobra.Command {
	var inventory string
	command := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration file or an inventory",
		Long: `Prints each error of a configuration file with its line and key.

Without FILE, checks this node's file and the inventory that it names, and that only
administrators can write both.`,
		Example: `  dxctl config check
  dxctl config check config.yaml --inventory gpus.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usage("name one file")
			}
			return nil
		},
	}
	command.Flags().StringVar(&inventory, "inventory", "", "check the inventory `FILE`, with FILE or alone")
	command.RunE = func(command *cobra.Command, args []string) error {
		stdout := command.OutOrStdout()
		if inventory != "" {
			devices, err := config.ReadInventory(inventory, true)
			if err := printResult(stdout, inventory, plural(len(devices), "GPU"), err); err != nil || len(args) == 0 {
				return err
			}
		}
		c := config.Compiler{File: paths.Default().Config, Required: true, StateDir: paths.Default().State, NodeOS: runtime.GOOS, CheckRuntime: shim.CheckConfigured}
		if len(args) == 1 {
			c.File, c.Inspect = args[0], true
		}
		p, devices, err := c.Compile()
		return printResult(stdout, c.File, summary(p, devices), err)
	}
	return command
}

// printResult prints that a file is valid, or its problems.
func printResult(stdout io.Writer, file, summary string, err error) error {
	problems := config.KeyErrors(nil)
	if errors.As(err, &problems) {
		fmt.Fprintln(stdout, problems)
		return fmt.Errorf("%s: %s", problems[0].File, plural(len(problems), "problem"))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s is valid: %s\n", file, summary)
	return err
}

func newConfigShowCommand() *cobra.Command {
	var stateDir, output string
	command := &cobra.Command{
		Use:   "show",
		Short: "Show the node policy in force",
		Long: `Shows the policy in force, with its defaults and the files that it was compiled from,
and warns about files that have changed since.`,
		Example: `  dxctl config show -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := policy.Read(stateDir)
			if err != nil {
				return err
			}
			for _, stale := range config.Stale(p, paths.Default().Config) {
				fmt.Fprintf(c.ErrOrStderr(), "warning: %s; run 'dxctl config apply', or see the log of directx-advertiser\n", stale)
			}
			return printer.Document(c.OutOrStdout(), output, p)
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&stateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	cli.AddChoice(command, &output, "output", "o", "output format", printer.YAML, printer.JSON)
	return command
}

// plural returns a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
