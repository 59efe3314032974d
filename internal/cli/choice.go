package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// AddChoice adds a flag whose value is one of choices. The default is *value, or the first choice if
// *value is empty. Shells complete the choices, and the usage lists them.
func AddChoice(command *cobra.Command, value *string, name, shorthand, usage string, choices ...string) {
	*value = cmp.Or(*value, choices[0])
	list := strings.Join(choices, ", ")
	command.Flags().FuncP(name, shorthand, fmt.Sprintf("%s: %s (default %q)", usage, list, *value), func(text string) error {
		if !slices.Contains(choices, text) {
			return fmt.Errorf("want one of %s", list)
		}
		*value = text
		return nil
	})
	// It fails only for a flag that does not exist.
	_ = command.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}
