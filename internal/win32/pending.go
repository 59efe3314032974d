package win32

import "strings"

// withoutRename returns the list of renames at boot, pairs of an old and a new path with the prefix \??\,
// without those of the file from.
func withoutRename(list []string, from string) []string {
	var rest []string
	for i := 0; i < len(list); i += 2 {
		if !strings.EqualFold(strings.TrimPrefix(list[i], `\??\`), from) {
			rest = append(rest, list[i:min(i+2, len(list))]...)
		}
	}
	return rest
}
