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
)

// Shell is a kind of shell.
type Shell string

// The shells.
const (
	// Bash is any POSIX shell.
	Bash Shell = "bash"
	// Cmd is cmd.exe, interactive and in batch files.
	Cmd Shell = "cmd"
	// PowerShell is Windows PowerShell 5.1 and PowerShell 7, on Windows.
	PowerShell Shell = "powershell"
)

// ErrNotQuotable is the error of arguments that cannot be quoted for a shell.
var ErrNotQuotable = errors.New("cannot be quoted for this shell")

// The longest lines in UTF-16 units, with room for the rest of the command.
const (
	// https://learn.microsoft.com/troubleshoot/windows-client/shell-experience/command-line-string-limitation
	longestCmd = 8191 - 512
	// https://learn.microsoft.com/windows/win32/api/processthreadsapi/nf-processthreadsapi-createprocessw
	longestProcess = 32767 - 512
)

// Line returns args quoted for a line of the shell. An error matches
// [ErrNotQuotable].
func (s Shell) Line(args []string) (string, error) {
	words := make([]string, len(args))
	for i, arg := range args {
		var err error
		if words[i], err = s.word(arg); err != nil {
			return "", err
		}
	}
	line := strings.Join(words, " ")
	longest := map[Shell]int{Cmd: longestCmd, PowerShell: longestProcess}[s]
	if length := len(utf16.Encode([]rune(line))); longest > 0 && length > longest {
		return "", fmt.Errorf("%d characters %w (%s), which accepts about %d", length, ErrNotQuotable, s, longest)
	}
	return line, nil
}

// word returns arg as one word of the shell.
func (s Shell) word(arg string) (string, error) {
	// A terminal interprets pasted control characters.
	if !utf8.ValidString(arg) || strings.ContainsFunc(arg, unicode.IsControl) {
		return "", s.notQuotable(arg, "it has a control character, or is not UTF-8")
	}
	switch s {
	case Cmd:
		return s.cmdWord(arg)
	case PowerShell:
		return s.powerShellWord(arg)
	}
	return shellescape.Quote(arg), nil
}

func (s Shell) notQuotable(arg, why string) error {
	return fmt.Errorf("%q %w (%s): %s", arg, ErrNotQuotable, s, why)
}

// plain reports whether arg is a flag's name or a path without spaces, which needs
// no quotation marks in both Windows shells.
func plain(arg string) bool {
	return regexp.MustCompile(`^(--?[A-Za-z][A-Za-z0-9-]*|[A-Za-z/][A-Za-z0-9_./\\:-]*)$`).MatchString(arg)
}

// cmdWord quotes for cmd.exe, which expands % and ! even in quotation marks; they
// are escaped differently at the prompt and in batch files, so they are refused.
//
// cmd.exe does not recognize escaped quotation marks. An argument that has one is
// therefore not quoted for cmd.exe; its special characters are escaped by a caret.
func (s Shell) cmdWord(arg string) (string, error) {
	switch {
	case strings.ContainsAny(arg, "%!"):
		return "", s.notQuotable(arg, "% and ! are expanded there")
	case plain(arg):
		return arg, nil
	case !strings.Contains(arg, `"`):
		return processWord(arg), nil
	}
	var b strings.Builder
	for _, r := range processWord(arg) {
		if strings.ContainsRune(`()^"<>&|`, r) {
			b.WriteByte('^')
		}
		b.WriteRune(r)
	}
	return b.String(), nil
}

// processWord quotes arg for the command line of a Windows process.
// https://learn.microsoft.com/cpp/c-language/parsing-c-command-line-arguments
func processWord(arg string) string {
	var b strings.Builder
	b.WriteByte('"')
	backslashes := 0
	for _, r := range arg {
		switch r {
		case '\\':
			backslashes++
		case '"':
			b.WriteString(strings.Repeat(`\`, backslashes+1))
			backslashes = 0
		default:
			backslashes = 0
		}
		b.WriteRune(r)
	}
	b.WriteString(strings.Repeat(`\`, backslashes))
	b.WriteByte('"')
	return b.String()
}

// powerShellWord quotes for PowerShell. Versions 5.1 and 7.3 pass arguments to
// programs differently; arguments for which the results differ are refused.
// https://learn.microsoft.com/powershell/module/microsoft.powershell.core/about/about_parsing#passing-arguments-to-native-commands
func (s Shell) powerShellWord(arg string) (string, error) {
	switch {
	case arg == "":
		return "", s.notQuotable(arg, "version 5.1 drops it")
	case strings.Contains(arg, `"`):
		return "", s.notQuotable(arg, `version 5.1 does not pass " on`)
	case strings.HasSuffix(arg, `\`) && strings.ContainsFunc(arg, unicode.IsSpace):
		return "", s.notQuotable(arg, `version 5.1 does not pass on spaces with a \ at the end`)
	case plain(arg):
		return arg, nil
	}
	var b strings.Builder
	b.WriteByte('\'')
	for _, r := range arg {
		// Typographic quotation marks end a string too.
		if strings.ContainsRune("'\u2018\u2019\u201a\u201b", r) {
			b.WriteRune(r)
		}
		b.WriteRune(r)
	}
	b.WriteByte('\'')
	return b.String(), nil
}
