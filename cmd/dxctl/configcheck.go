package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"directx-nri/advertiser/resources"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/strictyaml"
)

func newConfigCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "config",
		Short: "Check, show and install the configuration of a node",
	}
	command.AddCommand(newConfigCheckCommand(), newConfigShowCommand(), newConfigInstallCommand())
	return command
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func newConfigCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Tell whether a configuration file is good",
		Long: `Reads a configuration file as our programs do, and prints a line for each thing
that is wrong with it: the file, the line, the key, and what to write instead.
Variables of the environment do not count here.

Without FILE this node's own is checked, and that nobody but the system's
administrators can have written it. A file that is named may be anybody's: so a
configuration is checked before it comes to a node.

Exit status: 0 when the file is good, 1 when it is not, or cannot be read.`,
		Example: `  dxctl config check
  dxctl config check deployments/config.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usage("name one file")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				return checkConfig(c.OutOrStdout(), args[0], config.Inspect)
			}
			path := config.Path()
			if _, err := os.Lstat(path); err != nil {
				return fmt.Errorf("%w; without a file the defaults count, which 'dxctl config show' shows", err)
			}
			return checkConfig(c.OutOrStdout(), path, config.Read)
		},
	}
}

func checkConfig(stdout io.Writer, path string, read func(string, ...config.Override) (config.Config, error)) error {
	c, err := read(path)
	problems := strictyaml.Problems(nil)
	if errors.As(err, &problems) {
		fmt.Fprintln(stdout, problems)
		return fmt.Errorf("%s: %s", path, plural(len(problems), "problem"))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s is good: %s by %s\n", path, strings.Join(resources.Names(c.Resources), ", "), plural(len(c.Resources), "rule"))
	return err
}
