package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completeFlags adds completion of the values that a flag's help enumerates to command
// and those below it.
func completeFlags(command *cobra.Command) {
	for _, below := range command.Commands() {
		completeFlags(below)
	}
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		if values := enumerated(flag.Usage); len(values) > 0 {
			// The only error is a flag that does not exist.
			_ = command.RegisterFlagCompletionFunc(flag.Name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	})
}

// enumerated returns the values at the end of a flag's help, such as "output format:
// text or json".
func enumerated(usage string) []string {
	if strings.HasSuffix(usage, ")") { // the default
		usage = usage[:max(0, strings.LastIndex(usage, " ("))]
	}
	_, text, ok := strings.Cut(usage, ": ")
	first, last, isList := strings.Cut(text, " or ")
	if !ok || !isList {
		return nil
	}
	values := append(strings.Split(first, ", "), last)
	if slices.ContainsFunc(values, func(value string) bool {
		return value == "" || strings.Trim(value, "abcdefghijklmnopqrstuvwxyz0123456789-") != ""
	}) {
		return nil
	}
	return values
}
