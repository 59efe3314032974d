package runflags

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
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
