package winpath

import (
	"slices"
	"strings"
)

// Match reports whether all of name matches pattern, in which * means any number of characters and
// ? means one. Case is ignored.
func Match(pattern, name string) bool {
	p, n := []rune(strings.Map(foldCase, pattern)), []rune(strings.Map(foldCase, name))
	// After a mismatch, the last * matches one more character. Earlier ones need not match more.
	star, taken := -1, 0
	i, j := 0, 0
	for j < len(n) {
		switch {
		case i < len(p) && p[i] == '*':
			star, taken = i, j
			i++
		case i < len(p) && (p[i] == '?' || p[i] == n[j]):
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

// MatchPath reports whether the relative path p matches pattern element by element.
func MatchPath(pattern, p string) bool {
	return slices.EqualFunc(parse(pattern).elements, parse(p).elements, Match)
}

// HasWildcard reports whether p contains * or ?.
func HasWildcard(p string) bool { return strings.ContainsAny(p, "*?") }

// IsLocalGlob is [IsLocal] for a path with wildcards.
func IsLocalGlob(p string) bool {
	return IsLocal(strings.NewReplacer("*", "x", "?", "x").Replace(p))
}
