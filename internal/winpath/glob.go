package winpath

import (
	"path"
	"slices"
	"strings"
)

// Match reports whether all of name matches pattern, in which * means any number of characters and
// ? means one. Case is ignored.
func Match(pattern, name string) bool {
	// The rest of the syntax of [path.Match] is not used.
	literal := strings.NewReplacer(`\`, `\\`, `[`, `\[`, "/", "\x00")
	name = strings.ReplaceAll(strings.Map(foldCase, name), "/", "\x00")
	matches, err := path.Match(literal.Replace(strings.Map(foldCase, pattern)), name)
	return err == nil && matches
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
