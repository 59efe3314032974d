// Package quote quotes arguments for shells. What cannot be quoted is an error.
package quote

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

// The shells that are known.
const (
	// Bash is any shell that quotes as POSIX says.
	Bash Shell = "bash"
	// Cmd is cmd.exe, at its prompt and in its files.
	Cmd Shell = "cmd"
	// PowerShell is Windows PowerShell 5.1 and PowerShell 7, on Windows.
	PowerShell Shell = "powershell"
)

// Names returns the names of the shells.
func Names() []string { return []string{string(Cmd), string(PowerShell), string(Bash)} }

// Parse returns the shell with the given name.
func Parse(name string) (Shell, error) {
	switch s := Shell(name); s {
	case Bash, Cmd, PowerShell:
		return s, nil
	}
	return "", fmt.Errorf("%q is not one of %s", name, strings.Join(Names(), ", "))
}

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
	// Pasted, a control character is a key that is pressed.
	if !utf8.ValidString(arg) || strings.ContainsFunc(arg, unicode.IsControl) {
		return "", s.notQuotable(arg, "it has a control character in it, or is not UTF-8")
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

// plain reports whether arg is a flag's name or a path without spaces, which both Windows shells,
// and every program's start-up, take as it is. PowerShell has a meaning for most
// else at the beginning of a word.
func plain(arg string) bool {
	return regexp.MustCompile(`^(--?[A-Za-z][A-Za-z0-9-]*|[A-Za-z/][A-Za-z0-9_./\\:-]*)$`).MatchString(arg)
}

// cmdWord quotes for cmd.exe. Between quotation marks it leaves all but % and !
// alone; both stand for variables, how they are kept from it is not the same at
// the prompt and in a file, and there is no way that is right in both.
//
// cmd.exe counts each quotation mark as a beginning or an end, the escaped ones
// too. So in an argument that has one, each character that cmd.exe knows is
// escaped by a caret, and for cmd.exe nothing is quoted.
func (s Shell) cmdWord(arg string) (string, error) {
	switch {
	case strings.ContainsAny(arg, "%!"):
		return "", s.notQuotable(arg, "% and ! stand for variables there")
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

// processWord quotes arg as a program on Windows reads its own command line.
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

// powerShellWord quotes for PowerShell, where nothing in a literal text has a
// meaning but the quotation mark that ends it.
//
// How it then passes the text on to a program is not the same in 5.1, which
// drops an empty one and escapes nothing, and in 7.3. What they pass on
// differently is refused.
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
		// It takes the typographic ones for the plain one.
		if strings.ContainsRune("'\u2018\u2019\u201a\u201b", r) {
			b.WriteRune(r)
		}
		b.WriteRune(r)
	}
	b.WriteByte('\'')
	return b.String(), nil
}
