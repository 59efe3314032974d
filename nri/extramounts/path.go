package extramounts

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode"

	"directx-nri/internal/strictyaml"
	"directx-nri/internal/winpath"
	"directx-nri/ocispec"
)

// What may be wrong with a path as it stands.
var (
	ErrDots          = errors.New(`"." and ".." are not allowed in a path`)
	ErrStream        = errors.New("a colon is not allowed but behind a drive's letter: it names an alternate data stream")
	ErrDevicePath    = errors.New(`device paths (\\?\, \\.\, \??\) are not allowed`)
	ErrUNC           = errors.New("network paths are not allowed")
	ErrDriveRelative = errors.New(`the path is neither relative nor does it begin with a drive and a separator, such as C:\`)
	ErrReservedName  = errors.New("it has a name that stands for a device in every folder")
	ErrTrailing      = errors.New("a name ends with a dot or a space, which Windows drops")
	ErrCharacter     = errors.New("it has a character that is not allowed in a path")
	ErrShortName     = errors.New("it looks like a short (8.3) name; write the long one")
	ErrEmptyElement  = errors.New("two separators follow each other, or one ends the path")
)

// place is a path that was found to be plain: no element of it means anything else
// than a file or a folder of that very name.
type place struct {
	path     string
	absolute bool
	// elements is how many names it has behind the drive or root.
	elements int
}

// plain reads text as a path of the given operating system. Its error is one of
// those above.
func plain(os ocispec.OS, text string) (place, error) {
	check := plainWindows
	if os == ocispec.Linux {
		check = plainLinux
	}
	p, err := check(text)
	if err != nil {
		return place{}, fmt.Errorf("%s: %w", strictyaml.Quote(text), err)
	}
	return p, nil
}

func plainWindows(text string) (place, error) {
	p := strings.ReplaceAll(text, "/", `\`)
	switch {
	case strings.HasPrefix(p, `\\?\`), strings.HasPrefix(p, `\\.\`), strings.HasPrefix(p, `\??\`):
		return place{}, ErrDevicePath
	case strings.HasPrefix(p, `\\`):
		return place{}, ErrUNC
	case strings.HasPrefix(p, `\`):
		return place{}, ErrDriveRelative
	}
	absolute := len(p) >= 2 && p[1] == ':' && asciiLetter(p[0])
	rest := p
	if absolute {
		if len(p) < 3 || p[2] != '\\' {
			return place{}, ErrDriveRelative
		}
		rest = p[3:]
	}
	names := strings.Split(rest, `\`)
	for _, name := range names {
		if err := checkName(name); err != nil {
			return place{}, err
		}
	}
	return place{path: winpath.Clean(p), absolute: absolute, elements: len(names)}, nil
}

// checkName judges one element of a Windows path.
// https://learn.microsoft.com/windows/win32/fileio/naming-a-file
func checkName(name string) error {
	switch {
	case name == "":
		return ErrEmptyElement
	case name == ".", name == "..":
		return ErrDots
	case strings.Contains(name, ":"):
		return ErrStream
	case strings.ContainsFunc(name, func(r rune) bool { return !plainRune(r) }):
		return ErrCharacter
	case strings.TrimRight(name, ". ") != name:
		return ErrTrailing
	case winpath.LooksShort(name):
		return ErrShortName
	case !winpath.IsLocal(name):
		return ErrReservedName
	}
	return nil
}

// plainRune tells whether r stands for itself. Beyond ASCII those are letters and
// digits, without the forms that somebody on the way may take for an ASCII one: in
// another width, or in another case, as the Kelvin sign is a K.
func plainRune(r rune) bool {
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

func asciiLetter(b byte) bool { return 'a' <= b|0x20 && b|0x20 <= 'z' }

func plainLinux(text string) (place, error) {
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || r == '\\' || r == unicode.ReplacementChar }) {
		return place{}, ErrCharacter
	}
	rest, absolute := strings.CutPrefix(text, "/")
	names := strings.Split(rest, "/")
	for _, name := range names {
		switch name {
		case "":
			return place{}, ErrEmptyElement
		case ".", "..":
			return place{}, ErrDots
		}
	}
	return place{path: path.Clean(text), absolute: absolute, elements: len(names)}, nil
}

// below tells whether p lies below folder, both of the operating system.
func below(os ocispec.OS, folder, p string) bool {
	if os == ocispec.Windows {
		return winpath.Within(folder, p) && !winpath.Equal(folder, p)
	}
	folder, p = path.Clean(folder), path.Clean(p)
	return p != folder && strings.HasPrefix(p, strings.TrimRight(folder, "/")+"/")
}

// join returns the path of name in folder.
func join(os ocispec.OS, folder, name string) string {
	if os == ocispec.Windows {
		return winpath.Join(folder, name)
	}
	return path.Join(folder, name)
}

func base(os ocispec.OS, p string) string {
	if os == ocispec.Windows {
		return winpath.Base(p)
	}
	return path.Base(p)
}
