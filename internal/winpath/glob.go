package winpath

import (
	"strings"

	"directx-nri/internal/glob"
)

// Match tells whether the whole of name, one element of a path, fits pattern, in
// which * stands for any characters and ? for any one, whatever the case.
func Match(pattern, name string) bool { return glob.Match(pattern, name, upper) }

// MatchPath tells whether the relative path p fits pattern, element by element:
// neither * nor ? stands for a separator.
func MatchPath(pattern, p string) bool {
	patterns, names := parse(pattern).elements, parse(p).elements
	if len(patterns) != len(names) {
		return false
	}
	for i, name := range names {
		if !Match(patterns[i], name) {
			return false
		}
	}
	return true
}

// HasWildcard tells whether p has a * or a ? in it.
func HasWildcard(p string) bool { return strings.ContainsAny(p, "*?") }

// IsLocalGlob is [IsLocal] for a path that may have wildcards in it.
func IsLocalGlob(p string) bool {
	return IsLocal(strings.NewReplacer("*", "x", "?", "x").Replace(p))
}

// Elements returns the elements of the cleaned path p, without what comes before
// them: drive, share or device.
func Elements(p string) []string { return parse(p).elements }

// Within tells whether p is folder or lies below it, as far as the paths alone
// can say; see [Key].
func Within(folder, p string) bool {
	f, k := Key(folder), Key(p)
	return k == f || strings.HasPrefix(k, strings.TrimRight(f, `\`)+`\`)
}
