package runflags

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]map[Shell]string{
		"--device": {Bash: "--device", Cmd: "--device", PowerShell: "--device"},
		"-t":       {Bash: "-t", Cmd: "-t", PowerShell: "-t"},
		"vpci-location-path://PCIROOT(0)#PCI(1B00)": {
			Bash: "'vpci-location-path://PCIROOT(0)#PCI(1B00)'", Cmd: `"vpci-location-path://PCIROOT(0)#PCI(1B00)"`, PowerShell: "'vpci-location-path://PCIROOT(0)#PCI(1B00)'",
		},
		`src=C:\a b\c.dll,dst=C:\d,options=ro`: {
			Bash: `'src=C:\a b\c.dll,dst=C:\d,options=ro'`, Cmd: `"src=C:\a b\c.dll,dst=C:\d,options=ro"`, PowerShell: `'src=C:\a b\c.dll,dst=C:\d,options=ro'`,
		},
		`PCI\VEN_10DE&DEV_1EB8`: {Bash: `'PCI\VEN_10DE&DEV_1EB8'`, Cmd: `"PCI\VEN_10DE&DEV_1EB8"`, PowerShell: `'PCI\VEN_10DE&DEV_1EB8'`},
		`C:\ends here\`:         {Bash: `'C:\ends here\'`, Cmd: `"C:\ends here\\"`, PowerShell: ""},
		`C:\ends\`:              {Bash: `'C:\ends\'`, Cmd: `C:\ends\`, PowerShell: `C:\ends\`},
		`"src=C:\a,b",ro`:       {Bash: `'"src=C:\a,b",ro'`, Cmd: `^"\^"src=C:\a,b\^",ro^"`, PowerShell: ""},
		`a\"b & (c)`:            {Bash: `'a\"b & (c)'`, Cmd: `^"a\\\^"b ^& ^(c^)^"`, PowerShell: ""},
		"100%":                  {Bash: "100%", Cmd: "", PowerShell: "'100%'"},
		"now!":                  {Bash: "'now!'", Cmd: "", PowerShell: "'now!'"},
		"it's":                  {Bash: `'it'"'"'s'`, Cmd: `"it's"`, PowerShell: "'it''s'"},
		"it\u2019s":             {Bash: "'it\u2019s'", Cmd: "\"it\u2019s\"", PowerShell: "'it\u2019\u2019s'"},
		"-a.b":                  {Bash: "-a.b", Cmd: `"-a.b"`, PowerShell: "'-a.b'"},
		"$HOME":                 {Bash: "'$HOME'", Cmd: `"$HOME"`, PowerShell: "'$HOME'"},
		"":                      {Bash: "''", Cmd: `""`, PowerShell: ""},
		"two\nlines":            {Bash: "", Cmd: "", PowerShell: ""},
		"tab\there":             {Bash: "", Cmd: "", PowerShell: ""},
		"no UTF-8 \xff":         {Bash: "", Cmd: "", PowerShell: ""},
		"nul\x00":               {Bash: "", Cmd: "", PowerShell: ""},
	} {
		for shell, want := range want {
			got, err := shell.Line([]string{arg})
			if got != want || (err == nil) != (want != "") || err != nil && (!errors.Is(err, ErrNotQuotable) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%s: %q is %s, %v; want %s", shell, arg, got, err, want)
			}
		}
	}
}

func TestLongestLine(t *testing.T) {
	t.Parallel()
	for shell, longest := range map[Shell]int{Cmd: longestCmd, PowerShell: longestProcess} {
		// The line has a hyphen at its beginning, and quotation marks.
		args := []string{"-" + strings.Repeat("a", longest/2-1), strings.Repeat("é", longest-longest/2-3)}
		if _, err := shell.Line(args); err != nil {
			t.Errorf("%s: the longest line: %v", shell, err)
		}
		args[1] += "é"
		if _, err := shell.Line(args); !errors.Is(err, ErrNotQuotable) || len(err.Error()) > 200 {
			t.Errorf("%s: a line that is too long: %v", shell, err)
		}
		if _, err := Bash.Line(args); err != nil {
			t.Errorf("bash: %v", err)
		}
	}
}

// hard are arguments that are difficult to quote.
var hard = []string{
	"", " ", "a", "a b", `\`, `\\`, `a\`, `a b\`, `a b\\`, `"`, `""`, `\"`, `a\\"b`, `"a b"`, "'", "''", "`", "$x", "$(x)", "%PATH%", "!x!", "^", "a^b", "&", "a&b",
	"|", "<", ">", "(", ")", "a;b", "a,b", "a=b", "--x=y z", "-a:b", "-a.b", "@x", "@(x)", "#", "a#b", "~", "*", "?", "[a]", "{a,b}", "1e3", "0x10", "5kb",
	"PCIROOT(0)#PCI(1B00)", `PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&38DB2BD&0&0008`, "\u2018x\u2019", "\u201cx\u201d", "\u00a0", "é", "𝄞", "--%", "--", "-",
	"\u2013dash", "x\u2028y", "a\u200bb",
}

// TestBash has the real bash read lines.
func TestBash(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	args := slices.DeleteFunc(slices.Clone(hard), func(s string) bool { return s == "" })
	args = append(args, "")
	line, err := Bash.Line(args)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(bash, "-c", "printf '%s\\0' "+line).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); !slices.Equal(got, args) {
		t.Errorf("bash read %q, want %q", got, args)
	}
}

// reads are the readers of lines, one for each version of a shell.
var reads = map[Shell][]func(string) ([]string, error){
	Cmd:        {readCmd},
	PowerShell: {readPowerShell(pass51), readPowerShell(pass73)},
}

// TestWindowsShells has models of the shells read lines: of one argument, and of
// all at once.
func TestWindowsShells(t *testing.T) {
	t.Parallel()
	for shell, readers := range reads {
		var all []string
		for _, arg := range hard {
			if _, err := shell.Line([]string{arg}); err == nil {
				checkRead(t, shell, readers, []string{arg})
				all = append(all, arg)
			}
		}
		checkRead(t, shell, readers, all)
		if len(all) < len(hard)/2 {
			t.Errorf("%s can be told %d of %d", shell, len(all), len(hard))
		}
	}
}

func checkRead(t *testing.T, shell Shell, readers []func(string) ([]string, error), args []string) {
	t.Helper()
	line, err := shell.Line(args)
	if err != nil {
		t.Fatal(err)
	}
	for i, read := range readers {
		got, err := read(line)
		if err != nil || !slices.Equal(got, args) {
			t.Errorf("%s, version %d: %s is read as %q, %v; want %q", shell, i, line, got, err, args)
		}
	}
}

func FuzzLine(f *testing.F) {
	for _, arg := range hard {
		f.Add(arg, "x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for shell, readers := range reads {
			line, err := shell.Line([]string{a, b})
			if err != nil {
				if !errors.Is(err, ErrNotQuotable) {
					t.Errorf("error %v", err)
				}
				continue
			}
			if strings.ContainsFunc(line, unicode.IsControl) || !utf8.ValidString(line) {
				t.Errorf("%q is no line", line)
			}
			checkRead(t, shell, readers, []string{a, b})
		}
		line, err := Bash.Line([]string{a, b})
		if err != nil {
			return
		}
		if got, err := readPOSIX(line); err != nil || !slices.Equal(got, []string{a, b}) {
			t.Errorf("bash: %s is read as %q, %v; want %q", line, got, err, []string{a, b})
		}
	})
}

// readPOSIX reads what a POSIX shell would, as far as we make use of it.
func readPOSIX(line string) ([]string, error) {
	var args []string
	word, began, quote := "", false, rune(0)
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, began = r, true
		case quote == 0 && r == ' ':
			if began {
				args = append(args, word)
			}
			word, began = "", false
		case quote == '"' && strings.ContainsRune("\\$`!", r), quote == 0 && strings.ContainsRune("\\$`!~*?[]{}()<>|&;#\"'\n\t", r):
			return nil, fmt.Errorf("%q has a meaning", r)
		default:
			word, began = word+string(r), true
		}
	}
	if began {
		args = append(args, word)
	}
	return args, nil
}

// readCmd takes a line apart as cmd.exe does, and then as the program does.
func readCmd(line string) ([]string, error) {
	var b strings.Builder
	quoted, escaped := false, false
	for _, r := range line {
		switch {
		case r == '%' || r == '!':
			return nil, fmt.Errorf("%q stands for a variable", r)
		case escaped:
			escaped = false
		case r == '"':
			quoted = !quoted
		case !quoted && r == '^':
			escaped = true
			continue
		case !quoted && strings.ContainsRune("&|<>()", r):
			return nil, fmt.Errorf("%q has a meaning", r)
		}
		b.WriteRune(r)
	}
	if quoted || escaped {
		return nil, errors.New("the line goes on")
	}
	return readProcess(b.String()), nil
}

// readProcess takes a command line apart as the C runtime and Go do.
func readProcess(line string) []string {
	var args []string
	for line = strings.TrimLeft(line, " \t"); line != ""; line = strings.TrimLeft(line, " \t") {
		var b strings.Builder
		quoted, backslashes := false, 0
		i := 0
		for ; i < len(line); i++ {
			c := line[i]
			if c == '\\' {
				backslashes++
				continue
			}
			if c == '"' {
				b.WriteString(strings.Repeat(`\`, backslashes/2))
				odd := backslashes%2 == 1
				backslashes = 0
				switch {
				case odd:
					b.WriteByte('"')
				case quoted && i+1 < len(line) && line[i+1] == '"':
					b.WriteByte('"')
					i++
				default:
					quoted = !quoted
				}
				continue
			}
			b.WriteString(strings.Repeat(`\`, backslashes))
			backslashes = 0
			if !quoted && (c == ' ' || c == '\t') {
				break
			}
			b.WriteByte(c)
		}
		b.WriteString(strings.Repeat(`\`, backslashes))
		args = append(args, b.String())
		line = line[i:]
	}
	return args
}

// readPowerShell takes a line apart as PowerShell does, has pass make a command
// line of it, and takes that apart as the program does.
func readPowerShell(pass func(string) string) func(string) ([]string, error) {
	return func(line string) ([]string, error) {
		var words []string
		for rest := []rune(line); len(rest) > 0; {
			word, n, err := powerShellToken(rest)
			if err != nil {
				return nil, err
			}
			words = append(words, pass(word))
			rest = rest[n:]
			if len(rest) > 0 {
				if rest[0] != ' ' {
					return nil, fmt.Errorf("%q follows a word", rest[0])
				}
				rest = rest[1:]
			}
		}
		return readProcess(strings.Join(words, " ")), nil
	}
}

// powerShellToken returns the first word, and how much of rest it is.
func powerShellToken(rest []rune) (string, int, error) {
	isQuote := func(r rune) bool { return strings.ContainsRune("'\u2018\u2019\u201a\u201b", r) }
	var word []rune
	if !isQuote(rest[0]) {
		i := 0
		for ; i < len(rest) && rest[i] != ' '; i++ {
			if r := rest[i]; r > unicode.MaxASCII || strings.ContainsRune("'\"`$()@{}[];,|&<>#%?*~^=+!", r) {
				return "", 0, fmt.Errorf("%q has a meaning", r)
			}
		}
		text := string(rest[:i])
		if text == "--%" || strings.HasPrefix(text, "-") && strings.ContainsAny(text[1:], ".") {
			return "", 0, fmt.Errorf("%s is taken apart", text)
		}
		return text, i, nil
	}
	for i := 1; i < len(rest); i++ {
		if !isQuote(rest[i]) {
			word = append(word, rest[i])
			continue
		}
		if i+1 == len(rest) || !isQuote(rest[i+1]) {
			return string(word), i + 1, nil
		}
		word = append(word, rest[i])
		i++
	}
	return "", 0, errors.New("the text does not end")
}

// pass51 puts quotation marks around what has a space in it, and does nothing
// else.
func pass51(word string) string {
	if strings.ContainsFunc(word, unicode.IsSpace) {
		return `"` + word + `"`
	}
	return word
}

// pass73 escapes.
func pass73(word string) string {
	if word == "" || strings.ContainsFunc(word, unicode.IsSpace) || strings.Contains(word, `"`) {
		return processWord(word)
	}
	return word
}
