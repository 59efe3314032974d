package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
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
	command.Flags().VarP(choice{value, choices}, name, shorthand, usage+": "+english.WordSeries(choices, "or"))
	// It fails only for a flag that does not exist.
	_ = command.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}

// Set implements [pflag.Value].
func (c choice) Set(text string) error {
	if !slices.Contains(c.choices, text) {
		return errors.New(WantOneOf(text, c.choices))
	}
	*c.value = text
	return nil
}

func (c choice) String() string { return *c.value }

func (choice) Type() string { return "string" }

// WantOneOf returns the remedy for a value that is not one of choices. It lists all choices, and
// suggests the one that the user probably meant.
func WantOneOf(typed string, choices []string) string {
	return "want " + english.WordSeries(choices, "or") + suggestion(typed, choices, "")
}

// suggestion returns the question whether the user meant a similar one of names, "" if none is
// similar. It prints the name with a prefix.
func suggestion(typed string, names []string, prefix string) string {
	// Cobra compares the names of commands only.
	list := &cobra.Command{}
	for _, name := range names {
		list.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	for distance := range 3 {
		list.SuggestionsMinimumDistance = distance
		for _, similar := range list.SuggestionsFor(typed) {
			// Short words of other meanings are similar, such as name and yaml.
			if distance < 2 || strings.EqualFold(similar[:1], typed[:min(len(typed), 1)]) {
				return fmt.Sprintf("; did you mean %s%s?", prefix, similar)
			}
		}
	}
	return ""
}
