package runflags

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"github.com/directx-nri/directx-nri/ocispec"
)

// ErrNotQuotable reports that an argument cannot be quoted for a shell.
var ErrNotQuotable = errors.New("cannot be quoted for a shell")

// Line returns args quoted for a command line: of a POSIX shell on Linux, and of both
// cmd.exe and PowerShell on Windows. An error matches [ErrNotQuotable].
func Line(os ocispec.OS, args []string) (string, error) {
	if os == ocispec.Linux {
		return shellescape.QuoteCommand(args), nil
	}
	words := make([]string, len(args))
	for i, arg := range args {
		switch {
		case plain.MatchString(arg):
			words[i] = arg
		case notQuotable.MatchString(arg):
			return "", fmt.Errorf("%q %w: cmd.exe and the versions of PowerShell read it differently", arg, ErrNotQuotable)
		default:
			words[i] = `"` + arg + `"`
		}
	}
	return strings.Join(words, " "), nil
}

var (
	// plain is a flag's name, or a word that needs no quotation marks in both shells.
	plain = regexp.MustCompile(`^(--[a-z-]+|[A-Za-z][A-Za-z0-9_./\\:-]*)$`)
	// notQuotable is an argument that a Windows shell changes in quotation marks, or that ends them.
	// PowerShell accepts typographic ones, and version 5.1 drops empty arguments.
	// https://learn.microsoft.com/powershell/module/microsoft.powershell.core/about/about_parsing#passing-arguments-to-native-commands
	notQuotable = regexp.MustCompile("[\"\u201c\u201d\u201e%!$`]|\\\\$|^$")
)
