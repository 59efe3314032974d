// Package winpath is path/filepath for Windows paths on every operating system.
//
// All functions are lexical. They accept both separators and return `\`. The forms of paths are:
//
//	C:\Windows    absolute
//	C:Windows     relative to the drive's current directory
//	\Windows      relative to the current drive
//	Windows       relative
//	\\…           of a network share or a device: never absolute, and never below a path of another form
//
// https://learn.microsoft.com/dotnet/standard/io/file-path-formats
package winpath

import (
	"slices"
	"strings"
	"unicode"
)

// Clean returns the shortest equivalent path, which has one `\` between elements, no `.` or `..`
// that can be resolved, and a drive letter in upper case. `..` cannot leave the drive. The empty path is ".".
func Clean(p string) string {
	c := parse(p)
	return c.String()
}

// Join appends all further arguments to the first non-empty one and cleans the result. Only the
// first one can make the path absolute or have a drive. The result is below it, unless a further
// argument has `..` (see [IsLocal]). Join of nothing is "".
func Join(elem ...string) string {
	first := slices.IndexFunc(elem, func(e string) bool { return e != "" })
	if first < 0 {
		return ""
	}
	p := parse(elem[first])
	for _, e := range elem[first+1:] {
		for _, name := range split(e) {
			p.push(name)
		}
	}
	return Clean(p.String())
}

// Base returns the last element of the cleaned path, `\` for a root, or "." for an empty path.
func Base(p string) string {
	c := parse(p)
	switch {
	case len(c.elements) > 0:
		return c.elements[len(c.elements)-1]
	case c.rooted():
		return `\`
	}
	return "."
}

// Dir returns all but the last element of the cleaned path. That of a root is the root.
func Dir(p string) string {
	c := parse(p)
	if n := len(c.elements); n > 0 {
		c.elements = c.elements[:n-1]
	}
	return c.String()
}

// IsAbs reports whether p begins with a drive and a separator.
func IsAbs(p string) bool {
	return len(p) > 2 && hasDrive(p) && strings.ContainsAny(p[2:3], `\/`)
}

// IsLocal reports whether p, joined to a directory, is a file or directory below it: p is relative,
// no `..` leaves it, and no element means something else to Windows: a stream (`name:stream`), a
// wildcard, a device such as NUL, or a name that ends with dots or spaces.
func IsLocal(p string) bool {
	if p == "" || strings.ContainsAny(p[:1], `\/`) {
		return false
	}
	depth := 0
	for _, name := range split(p) {
		if name == "." {
			continue
		}
		if name != ".." && !isPlainName(name) {
			return false
		}
		if name != ".." {
			depth++
		} else if depth--; depth < 0 {
			return false
		}
	}
	return true
}

// Key returns the same string for all paths that Windows considers equal, for use as a map key. In
// addition to [Clean], it folds case. It also removes dots and spaces at the end of names, as Win32
// does, and names that have nothing else. It does not resolve short names or links.
func Key(p string) string {
	c := parse(p)
	var kept []string
	for _, name := range c.elements {
		trimmed := strings.TrimRight(name, ". ")
		if name == ".." {
			trimmed = name
		}
		if trimmed != "" {
			kept = append(kept, trimmed)
		}
	}
	c.elements = kept
	return strings.Map(foldCase, strings.TrimRight(c.String(), `\`))
}

// Equal reports whether Windows considers a and b equal; see [Key].
func Equal(a, b string) bool { return Key(a) == Key(b) }

// EqualOrBelow reports whether p is dir or lexically below it; see [Key].
func EqualOrBelow(dir, p string) bool {
	d, k := Key(dir), Key(p)
	return k == d || strings.HasPrefix(k, strings.TrimRight(d, `\`)+`\`)
}

// LooksShort reports whether p has an element such as PROGRA~1, the form of the short names that
// Windows gives to files in addition to their long names.
// https://learn.microsoft.com/windows/win32/fileio/naming-a-file#short-vs-long-names
func LooksShort(p string) bool {
	for i := range len(p) - 1 {
		if p[i] == '~' && p[i+1] >= '0' && p[i+1] <= '9' {
			return true
		}
	}
	return false
}

// winPath is a parsed path.
type winPath struct {
	prefix   string   // C:\, C:, \, \\ or ""
	elements []string // resolved; ".." only at the front of a path that is not rooted
}

// rooted reports whether ".." cannot leave the prefix.
func (c *winPath) rooted() bool { return strings.HasSuffix(c.prefix, `\`) }

// parse parses and cleans p.
func parse(p string) (c winPath) {
	p = strings.ReplaceAll(p, "/", `\`)
	if hasDrive(p) {
		c.prefix, p = strings.ToUpper(p[:2]), p[2:]
	}
	switch {
	case c.prefix == "" && strings.HasPrefix(p, `\\`):
		c.prefix = `\\`
	case strings.HasPrefix(p, `\`):
		c.prefix += `\`
	}
	for _, name := range split(p) {
		c.push(name)
	}
	return c
}

// push appends one element, resolving dots.
func (c *winPath) push(name string) {
	if name == "." {
		return
	}
	n := len(c.elements)
	switch {
	case name != "..":
		c.elements = append(c.elements, name)
	case n > 0 && c.elements[n-1] != "..":
		c.elements = c.elements[:n-1]
	case !c.rooted():
		c.elements = append(c.elements, "..")
	}
}

func (c *winPath) String() string {
	names := strings.Join(c.elements, `\`)
	if names == "" && !c.rooted() {
		names = "."
	}
	if c.prefix == "" && hasDrive(names) {
		return `.\` + names // Without the dot, it would begin with a drive.
	}
	return c.prefix + names
}

// split returns the elements of p, not cleaned.
func split(p string) []string {
	return strings.FieldsFunc(p, func(r rune) bool { return r == '\\' || r == '/' })
}

// hasDrive reports whether p begins with a drive.
func hasDrive(p string) bool {
	return len(p) >= 2 && 'a' <= p[0]|0x20 && p[0]|0x20 <= 'z' && p[1] == ':'
}

// isPlainName reports whether name can only mean a file of that name.
// https://learn.microsoft.com/windows/win32/fileio/naming-a-file
func isPlainName(name string) bool {
	if strings.ContainsFunc(name, unicode.IsControl) || strings.ContainsAny(name, `<>:"|?*`) {
		return false
	}
	if strings.TrimRight(name, ". ") != name { // Windows drops them.
		return false
	}
	stem, _, _ := strings.Cut(name, ".")
	return !isReserved(strings.ToUpper(strings.TrimRight(stem, " ")))
}

// isReserved reports whether stem is the name of a DOS device. Such a name, with any extension,
// means the device in every directory.
func isReserved(stem string) bool {
	switch stem {
	case "CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$":
		return true
	}
	port, isPort := strings.CutPrefix(stem, "COM")
	if !isPort {
		port, isPort = strings.CutPrefix(stem, "LPT")
	}
	return isPort && slices.Contains([]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "¹", "²", "³"}, port)
}

// foldCase folds case as NTFS does. It converts single UTF-16 units, and converts no other
// character to ASCII, as Unicode does for ı and ſ.
func foldCase(r rune) rune {
	u := unicode.ToUpper(r)
	if r > 0xFFFF || u > 0xFFFF || (r > unicode.MaxASCII && u <= unicode.MaxASCII) {
		return r
	}
	return u
}
