package runflags

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"al.essio.dev/pkg/shellescape"

	"github.com/directx-nri/directx-nri/ocispec"
)

// ErrNotQuotable is the error of arguments that cannot be quoted for a shell.
var ErrNotQuotable = errors.New("cannot be quoted for a shell")

// longestProcess is the longest command line in UTF-16 units, with room for the rest of
// the command.
// https://learn.microsoft.com/windows/win32/api/processthreadsapi/nf-processthreadsapi-createprocessw
const longestProcess = 32767 - 512

// Line returns args quoted for a command line: of a POSIX shell on Linux, and of both
// cmd.exe and PowerShell on Windows. An error matches [ErrNotQuotable].
func Line(os ocispec.OS, args []string) (string, error) {
	words := make([]string, len(args))
	for i, arg := range args {
		switch {
		// A terminal interprets pasted control characters.
		case !utf8.ValidString(arg) || strings.ContainsFunc(arg, unicode.IsControl):
			return "", fmt.Errorf("%q %w: it has a control character, or is not UTF-8", arg, ErrNotQuotable)
		case os == ocispec.Linux:
			words[i] = shellescape.Quote(arg)
		case plain.MatchString(arg):
			words[i] = arg
		case notQuotable.MatchString(arg):
			return "", fmt.Errorf("%q %w: cmd.exe and the versions of PowerShell read it differently", arg, ErrNotQuotable)
		default:
			words[i] = `"` + arg + `"`
		}
	}
	line := strings.Join(words, " ")
	if length := len(utf16.Encode([]rune(line))); os == ocispec.Windows && length > longestProcess {
		return "", fmt.Errorf("%d characters %w, which accepts about %d", length, ErrNotQuotable, longestProcess)
	}
	return line, nil
}

var (
	// plain is a flag's name or a path without spaces, which needs no quotation marks in
	// both Windows shells.
	plain = regexp.MustCompile(`^(--?[A-Za-z][A-Za-z0-9-]*|[A-Za-z/][A-Za-z0-9_./\\:-]*)$`)
	// notQuotable is what a Windows shell expands in quotation marks, or that ends them.
	// PowerShell accepts typographic ones, and version 5.1 drops empty arguments.
	// https://learn.microsoft.com/powershell/module/microsoft.powershell.core/about/about_parsing#passing-arguments-to-native-commands
	notQuotable = regexp.MustCompile("[\"\u201c\u201d\u201e%!$`]|\\\\$|^$")
)
