// Package suggest suggests what a user probably meant in place of an unknown word.
package suggest

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
)

// WantOneOf returns the remedy for a value that is not one of choices. It lists all choices, and
// suggests the one that the user probably meant.
func WantOneOf(typed string, choices []string) string {
	return "want " + english.WordSeries(choices, "or") + DidYouMean(typed, choices, "")
}

// DidYouMean returns the question whether the user meant a similar one of names, "" if none is
// similar. It prints the name with a prefix.
func DidYouMean(typed string, names []string, prefix string) string {
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
