package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"directx-nri/internal/capabilities"
	"directx-nri/internal/cli"
)

func newCapabilitiesCommand() *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "capabilities",
		Short: "Tell what this Windows can do with GPUs in containers",
		Long: `Tells which Windows this is, which schemas its container service (HCS)
understands, and whether containers can be given single GPUs or only all of them.`,
		Example: `  dxctl capabilities
  dxctl capabilities -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != outputYAML && output != outputJSON {
				return cli.Usage("--output %q is neither %s nor %s", output, outputYAML, outputJSON)
			}
			return tellCapabilities(c.OutOrStdout(), output)
		},
	}
	command.Flags().StringVarP(&output, "output", "o", outputYAML, "form of the output: yaml or json")
	return command
}

// capabilitiesReport is what is told. The names of its fields are for scripts,
// and stay.
type capabilitiesReport struct {
	Windows string   `json:"windows" yaml:"windows"`
	Build   uint32   `json:"build" yaml:"build"`
	Server  bool     `json:"server" yaml:"server"`
	Schemas []string `json:"hcsSchemas,omitempty" yaml:"hcsSchemas,omitempty"`
	// HCSError is why HCS does not say which.
	HCSError string `json:"hcsError,omitempty" yaml:"hcsError,omitempty"`
	// Assignment is "location-path" or "class-guid".
	Assignment string `json:"assignment" yaml:"assignment"`
	Reason     string `json:"reason" yaml:"reason"`
}

// How containers can be given GPUs.
const (
	assignByPath  = "location-path"
	assignByClass = "class-guid"
)

func tellCapabilities(stdout io.Writer, output string) error {
	c, err := capabilities.Ask()
	if err != nil {
		return fmt.Errorf("%w; run this on a Windows node", err)
	}
	return printAs(stdout, output, reportCapabilities(c))
}

func reportCapabilities(c capabilities.Capabilities) capabilitiesReport {
	assignment := c.Assignment()
	r := capabilitiesReport{
		Windows: c.Windows.String(), Build: c.Windows.Build, Server: c.Windows.Server,
		Assignment: assignByClass, Reason: assignment.Reason,
	}
	if assignment.Individual {
		r.Assignment = assignByPath
	}
	if c.SchemasErr != nil {
		r.HCSError = c.SchemasErr.Error()
		return r
	}
	for _, schema := range c.Schemas {
		r.Schemas = append(r.Schemas, schema.String())
	}
	return r
}
