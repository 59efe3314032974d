package extramounts

import (
	"errors"
	"path"
	"strings"
	"unicode"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Errors of a path as it is written.
var (
	errDots         = errors.New(`"." and ".." are not allowed in a path`)
	errStream       = errors.New(`a colon is allowed only in a drive, such as C:\; elsewhere it begins the name of an alternate data stream`)
	errNotAbsolute  = errors.New(`the path is neither relative nor begins with a drive and a separator, such as C:\; network and device paths are not allowed`)
	errReservedName = errors.New("a name is reserved for a device")
	errTrailing     = errors.New("a name ends with a dot or a space, which Windows removes")
	errCharacter    = errors.New("a character is not allowed in a path")
	errShortName    = errlog.WithRemedy(errors.New("a name looks like a short (8.3) name"), "use the long one")
	errEmptyElement = errors.New("a path element is empty")
)

// requestedPath is a path of a request, in which each element is just the name of a file or
// directory.
type requestedPath struct {
	path     string
	absolute bool
}

// parsePath parses a path of the operating system. Its errors are those above.
func parsePath(containerOS, text string) (requestedPath, error) {
	if containerOS == "linux" {
		return parseLinuxPath(text)
	}
	return parseWindowsPath(text)
}

func parseWindowsPath(text string) (requestedPath, error) {
	p := strings.ReplaceAll(text, "/", `\`)
	if strings.HasPrefix(p, `\`) {
		return requestedPath{}, errNotAbsolute
	}
	rest, absolute := p, winpath.IsAbs(p)
	if absolute {
		rest = p[len(`C:\`):]
	}
	for name := range strings.SplitSeq(rest, `\`) {
		if err := checkName(name); err != nil {
			return requestedPath{}, err
		}
	}
	return requestedPath{path: winpath.Clean(p), absolute: absolute}, nil
}

// checkName checks one element of a Windows path.
// https://learn.microsoft.com/windows/win32/fileio/naming-a-file
func checkName(name string) error {
	switch {
	case name == "":
		return errEmptyElement
	case name == ".", name == "..":
		return errDots
	case strings.Contains(name, ":"):
		return errStream
	case strings.ContainsFunc(name, func(r rune) bool { return !isAllowed(r) }):
		return errCharacter
	case strings.TrimRight(name, ". ") != name:
		return errTrailing
	case winpath.LooksShort(name):
		return errShortName
	case !winpath.IsLocal(name):
		return errReservedName
	}
	return nil
}

// isAllowed reports whether r is allowed in a name. Beyond ASCII those are letters and digits,
// except for those that a conversion of width or case makes ASCII, such as the Kelvin sign.
func isAllowed(r rune) bool {
	if r <= unicode.MaxASCII {
		return r >= ' ' && r != 0x7F && !strings.ContainsRune(`<>"|?*`, r)
	}
	for folded := unicode.SimpleFold(r); folded != r; folded = unicode.SimpleFold(folded) {
		if folded <= unicode.MaxASCII {
			return false
		}
	}
	wide := r >= 0xFF00 && r <= 0xFFEF
	return !wide && r != unicode.ReplacementChar && (unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsNumber(r))
}

func parseLinuxPath(text string) (requestedPath, error) {
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || r == '\\' || r == unicode.ReplacementChar }) {
		return requestedPath{}, errCharacter
	}
	rest, absolute := strings.CutPrefix(text, "/")
	for name := range strings.SplitSeq(rest, "/") {
		switch name {
		case "":
			return requestedPath{}, errEmptyElement
		case ".", "..":
			return requestedPath{}, errDots
		}
	}
	return requestedPath{path: path.Clean(text), absolute: absolute}, nil
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
