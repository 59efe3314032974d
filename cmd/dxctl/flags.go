package main

import "github.com/spf13/cobra"

func newFlagsCommand() *cobra.Command { return &cobra.Command{Use: "flags", Hidden: true} }
