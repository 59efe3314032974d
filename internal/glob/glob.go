// Package glob matches texts with patterns that have wildcards.
package glob

import (
	"slices"
	"strings"
)

// Match tells whether the whole of text is what pattern describes: * is any number
// of characters and ? is one. Two characters are the same when fold makes the same
// of them.
func Match(pattern, text string, fold func(rune) rune) bool {
	p, t := []rune(strings.Map(fold, pattern)), []rune(strings.Map(fold, text))
	// Where the last * was met, and how much of text it stands for so far: it takes
	// one character more whenever what follows it does not fit. An earlier * need
	// not be tried again, for the last one can take what that would leave.
	star, taken := -1, 0
	i, j := 0, 0
	for j < len(t) {
		switch {
		case i < len(p) && p[i] == '*':
			star, taken = i, j
			i++
		case i < len(p) && (p[i] == '?' || p[i] == t[j]):
			i++
			j++
		case star >= 0:
			taken++
			i, j = star+1, taken
		default:
			return false
		}
	}
	return !slices.ContainsFunc(p[i:], func(r rune) bool { return r != '*' })
}
