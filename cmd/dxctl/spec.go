package main

import "github.com/spf13/cobra"

func newSpecCommand() *cobra.Command { return &cobra.Command{Use: "spec", Hidden: true} }
