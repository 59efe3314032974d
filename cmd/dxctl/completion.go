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

	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/discovery"
)

// completeValues has a shell complete the values of an enumerated flag of
// command.
func completeValues(command *cobra.Command, flag string, values ...string) {
	completeFlag(command, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeFlag has a shell ask complete for the values of a flag of command.
func completeFlag(command *cobra.Command, flag string, complete cobra.CompletionFunc) {
	// The only errors: there is no such flag, or it has completion already. A
	// test looks at each flag.
	_ = command.RegisterFlagCompletionFunc(flag, complete)
}

// completeFlags has a shell complete the flags that several commands have, on
// command and all those below it: those by which GPUs are selected, and those
// whose values a command has not named itself and which their help enumerates.
func completeFlags(command *cobra.Command) {
	for _, below := range command.Commands() {
		completeFlags(below)
	}
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		if _, done := command.GetFlagCompletionFunc(flag.Name); done {
			return
		}
		if values := enumerated(flag.Usage); len(values) > 0 {
			completeValues(command, flag.Name, values...)
		}
	})
	if flags := command.Flags(); flags.Lookup("inventory") == nil || flags.Lookup("shim-config") == nil {
		return
	}
	completeFlag(command, "index", completeDevice(namedByIndex))
	completeFlag(command, "luid", completeDevice(namedByLUID))
	completeFlag(command, "path", completeDevice(discovery.Device.Name))
}

// enumerated returns the values that a flag's help lists at its end ("form of the
// output: text or json"), none where it lists none.
func enumerated(usage string) []string {
	if strings.HasSuffix(usage, ")") { // what the default is
		usage = usage[:max(0, strings.LastIndex(usage, " ("))]
	}
	_, text, ok := strings.Cut(usage, ": ")
	begin, last, isList := strings.Cut(text, " or ")
	if !ok || !isList {
		return nil
	}
	values := append(strings.Split(strings.TrimSuffix(begin, ","), ", "), last)
	if slices.ContainsFunc(values, func(value string) bool {
		return strings.Trim(value, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || value == ""
	}) {
		return nil
	}
	return values
}

// namedByIndex stands for a device's index in [completeDevice], which alone knows
// it.
func namedByIndex(discovery.Device) string { return indexName }

const indexName = "\x00index"

func namedByLUID(d discovery.Device) string {
	if d.LUID == 0 {
		return ""
	}
	return d.LUID.String()
}

// completionPatience is how long a shell waits for the names of GPUs.
const completionPatience = 2 * time.Second

// completeDevice completes the names of the node's GPUs, with what they are: in the
// first of the ways that names say by which there are any. The node's GPUs are
// those that the flags before it name.
func completeDevice(names ...func(discovery.Device) string) cobra.CompletionFunc {
	return func(command *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		source := gpuSource{inventory: command.Flag("inventory").Value.String(), file: command.Flag("shim-config").Value.String()}
		ctx, cancel := context.WithTimeout(command.Context(), completionPatience)
		defer cancel()
		devices, err := source.devices(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var completions []cobra.Completion
		for _, name := range names {
			if completions = deviceCompletions(devices, begun, name); len(completions) > 0 {
				break
			}
		}
		return completions, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// onlyFirst has complete complete a command's first argument and no more.
func onlyFirst(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(command, args, begun)
	}
}

// deviceCompletions completes what is begun of the devices' names.
func deviceCompletions(devices []discovery.Device, begun string, name func(discovery.Device) string) []cobra.Completion {
	var completions []cobra.Completion
	for i, d := range devices {
		text, before, taken := name(d), "", []string(nil)
		if text == indexName {
			// Several indices are a list with commas.
			text = strconv.Itoa(i)
			if comma := strings.LastIndex(begun, ","); comma >= 0 {
				before, taken = begun[:comma+1], strings.Split(begun[:comma], ",")
			}
		}
		if text == "" || text != terminal.Printable(text) || slices.Contains(taken, text) || !beginsWith(before+text, begun) {
			continue
		}
		what := d.Description
		if text != d.Name() {
			what += fmt.Sprintf(", %s", d.Name())
		}
		completions = append(completions, cobra.CompletionWithDesc(before+text, terminal.Printable(what)))
	}
	return completions
}

// beginsWith tells whether text begins with begun, in letters of any case.
func beginsWith(text, begun string) bool {
	return len(text) >= len(begun) && strings.EqualFold(text[:len(begun)], begun)
}

// newCompletionCommand is in place of cobra's own, which explains less.
func newCompletionCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "completion",
		Short: "Have a shell complete dxctl's commands, flags and GPUs",
		Long: `Prints a script that has a shell complete dxctl's commands, its flags, and the
names of this node's GPUs.`,
		Example: `  source <(dxctl completion bash)
  dxctl completion powershell | Out-String | Invoke-Expression`,
	}
	for _, shell := range []struct {
		name, setUp string
		write       func(*cobra.Command, io.Writer) error
	}{
		{"bash", `  source <(dxctl completion bash)                                # in this shell; needs the package bash-completion
  dxctl completion bash > /etc/bash_completion.d/dxctl           # in each new one`,
			func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) }},
		{"zsh", `  source <(dxctl completion zsh)                                 # in this shell; needs: autoload -U compinit; compinit
  dxctl completion zsh > "${fpath[1]}/_dxctl"                    # in each new one`,
			func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) }},
		{"fish", `  dxctl completion fish | source                                 # in this shell
  dxctl completion fish > ~/.config/fish/completions/dxctl.fish  # in each new one`,
			func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) }},
		{"powershell", `  dxctl completion powershell | Out-String | Invoke-Expression   # in this shell
  dxctl completion powershell >> $PROFILE                        # in each new one`,
			func(root *cobra.Command, w io.Writer) error { return root.GenPowerShellCompletionWithDesc(w) }},
	} {
		command.AddCommand(&cobra.Command{
			Use:     shell.name,
			Short:   "Print the script for " + shell.name,
			Example: shell.setUp,
			RunE:    func(c *cobra.Command, _ []string) error { return shell.write(c.Root(), c.OutOrStdout()) },
		})
	}
	return command
}
