// Package suggest suggests what a user probably meant in place of an unknown word.
package suggest

import (
	"fmt"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/dustin/go-humanize/english"
)

// WantOneOf returns the remedy for a value that is not one of choices. It lists all choices, and
// suggests the one that the user probably meant.
func WantOneOf(typed string, choices []string) string {
	return "want " + english.WordSeries(choices, "or") + DidYouMean(typed, choices, "")
}

// DidYouMean returns the question whether the user meant the most similar one of names, "" if none is
// similar. It prints the name with a prefix.
func DidYouMean(typed string, names []string, prefix string) string {
	if typed == "" {
		return ""
	}
	similar, least := "", 3
	for _, name := range names {
		if n := distance(strings.ToLower(typed), strings.ToLower(name)); n < least {
			similar, least = name, n
		}
	}
	if similar == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s%s?", prefix, similar)
}

// distance returns how much the words differ: 0 for the same word, at most 1 for an abbreviation.
func distance(typed, name string) int {
	n := levenshtein.ComputeDistance(typed, name)
	switch {
	case strings.HasPrefix(name, typed):
		return min(n, 1)
	case typed[0] != name[0]: // Short words of other meanings are similar, such as name and yaml.
		return n + 1
	}
	return n
}
