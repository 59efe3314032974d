package main

import "github.com/spf13/cobra"

func newAllocationsCommand() *cobra.Command { return &cobra.Command{Use: "allocations", Hidden: true} }
