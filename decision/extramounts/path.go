package extramounts

import (
	"errors"
	"path"
	"strings"
	"unicode"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// errName refuses a path as it is written.
var errName = errors.New("the path has a name that is empty, dots, short (8.3) or reserved for a device, ends with a dot or a space, or has a special character")

// parsePath parses a path of the operating system, in which each element is just the name of a file or directory.
// Windows paths are relative or begin with a drive and a separator: of network and device paths, and those on the
// current drive, the first name is empty.
func parsePath(containerOS, text string) (path string, absolute bool, err error) {
	names, absolute := strings.CutPrefix(text, "/")
	separator, isName := "/", isLinuxName
	if containerOS == "windows" {
		text = strings.ReplaceAll(text, "/", `\`)
		names, absolute = text, winpath.IsAbs(text)
		if absolute {
			names = text[len(`C:\`):]
		}
		separator, isName = `\`, isWindowsName
	}
	for name := range strings.SplitSeq(names, separator) {
		if !isName(name) {
			return "", false, errName
		}
	}
	return text, absolute, nil
}

// isWindowsName reports whether name is that of a file: no stream, wildcard, device or short name, and nothing
// that Windows removes.
// https://learn.microsoft.com/windows/win32/fileio/naming-a-file
func isWindowsName(name string) bool {
	return winpath.IsLocal(name) && name != "." && !winpath.LooksShort(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !isAllowed(r) })
}

// isAllowed reports whether r is allowed in a name that is local. Beyond ASCII those are letters and digits,
// except for those that a conversion of width or case makes ASCII, such as the Kelvin sign.
func isAllowed(r rune) bool {
	if r <= unicode.MaxASCII {
		return true
	}
	for folded := unicode.SimpleFold(r); folded != r; folded = unicode.SimpleFold(folded) {
		if folded <= unicode.MaxASCII {
			return false
		}
	}
	wide := r >= 0xFF00 && r <= 0xFFEF
	return !wide && (unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsNumber(r))
}

func isLinuxName(name string) bool {
	return name != "" && name != "." && name != ".." &&
		!strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || r == '\\' || r == unicode.ReplacementChar })
}

// isBelow reports whether p is below dir.
func isBelow(containerOS, dir, p string) bool {
	if containerOS == "windows" {
		return winpath.EqualOrBelow(dir, p) && !winpath.Equal(dir, p)
	}
	dir, p = path.Clean(dir), path.Clean(p)
	return p != dir && strings.HasPrefix(p, strings.TrimRight(dir, "/")+"/")
}

// joinPath returns the path of name in dir.
func joinPath(containerOS, dir, name string) string {
	if containerOS == "windows" {
		return winpath.Join(dir, name)
	}
	return path.Join(dir, name)
}

// baseName returns the last element of a path of parsePath, which has no backslash on Linux.
func baseName(p string) string { return p[strings.LastIndexAny(p, `/\`)+1:] }
