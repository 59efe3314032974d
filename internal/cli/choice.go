package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// choice is the value of a flag that has one of a few values.
type choice struct {
	value   *string
	choices []string
}

// AddChoice adds a flag whose value is one of choices. The default is *value, or the first choice if
// *value is empty. Shells complete the choices, and the usage lists them.
func AddChoice(command *cobra.Command, value *string, name, usage string, choices ...string) {
	addChoice(command, value, name, "", usage, choices)
}

func addChoice(command *cobra.Command, value *string, name, shorthand, usage string, choices []string) {
	*value = cmp.Or(*value, choices[0])
	command.Flags().VarP(choice{value, choices}, name, shorthand, usage+": "+strings.Join(choices, ", "))
	// It fails only for a flag that does not exist.
	_ = command.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}

// Set implements [pflag.Value].
func (c choice) Set(text string) error {
	if !slices.Contains(c.choices, text) {
		return fmt.Errorf("want one of %s", strings.Join(c.choices, ", "))
	}
	*c.value = text
	return nil
}

func (c choice) String() string { return *c.value }

func (choice) Type() string { return "string" }
