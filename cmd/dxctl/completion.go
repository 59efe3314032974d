package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"directx-nri/discovery"
	"directx-nri/internal/cli"
)

// completeFlags adds completion to command and those below it: of GPUs for the flags
// that select them, and of the values that a flag's help enumerates.
func completeFlags(command *cobra.Command) {
	for _, below := range command.Commands() {
		completeFlags(below)
	}
	// The only error is a flag that does not exist.
	complete := func(flag string, function cobra.CompletionFunc) {
		_ = command.RegisterFlagCompletionFunc(flag, function)
	}
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		if values := enumerated(flag.Usage); len(values) > 0 {
			complete(flag.Name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	})
	if command.Flags().Lookup("index") != nil {
		complete("index", completeDevice(deviceIndex))
		complete("luid", completeDevice(deviceLUID))
		complete("path", completeDevice(discovery.Device.Name))
	}
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

// deviceIndex stands for a device's index, which [deviceCompletions] adds.
func deviceIndex(discovery.Device) string { return indexName }

const indexName = "\x00index"

func deviceLUID(d discovery.Device) string {
	if d.LUID == 0 {
		return ""
	}
	return d.LUID.String()
}

// completeDevice completes the names of GPUs, in the first form that has any.
func completeDevice(forms ...func(discovery.Device) string) cobra.CompletionFunc {
	return func(command *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		flags := command.Flags()
		n := nodeConfig{inventory: flags.Lookup("inventory").Value.String(), config: flags.Lookup("config").Value.String(), stateDir: flags.Lookup("state-dir").Value.String()}
		ctx, cancel := context.WithTimeout(command.Context(), queryTimeout)
		defer cancel()
		source, _, err := n.open(io.Discard)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		devices, err := source.Devices(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var completions []cobra.Completion
		for _, form := range forms {
			if completions = deviceCompletions(devices, typed, form); len(completions) > 0 {
				break
			}
		}
		return completions, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// onlyFirst completes the first argument of a command only.
func onlyFirst(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(command, args, typed)
	}
}

// deviceCompletions returns the names of devices that begin with typed.
func deviceCompletions(devices []discovery.Device, typed string, form func(discovery.Device) string) []cobra.Completion {
	var completions []cobra.Completion
	for i, d := range devices {
		text, prefix, taken := form(d), "", []string(nil)
		if text == indexName { // Indices can be a list with commas.
			text = strconv.Itoa(i)
			if comma := strings.LastIndex(typed, ","); comma >= 0 {
				prefix, taken = typed[:comma+1], strings.Split(typed[:comma], ",")
			}
		}
		name := prefix + text
		if text == "" || text != cli.Printable(text) || slices.Contains(taken, text) || len(name) < len(typed) || !strings.EqualFold(name[:len(typed)], typed) {
			continue
		}
		description := d.Description
		if text != d.Name() {
			description += fmt.Sprintf(", %s", d.Name())
		}
		completions = append(completions, cobra.CompletionWithDesc(name, cli.Printable(description)))
	}
	return completions
}

// queryTimeout limits a query whose answer is optional.
const queryTimeout = 2 * time.Second
