package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCommand returns the hidden command that writes the man pages of a release.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the man pages of all commands",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			// The date is SOURCE_DATE_EPOCH's.
			return doc.GenManTree(c.Root(), &doc.GenManHeader{Source: "directx-nri", Manual: "directx-nri"}, args[0])
		},
	}
}
