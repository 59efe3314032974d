package runflags

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/ocispec"
)

func TestLine(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]struct{ linux, windows string }{
		"--device": {"--device", "--device"},
		"vpci-location-path://PCIROOT(0)#PCI(1B00)": {"'vpci-location-path://PCIROOT(0)#PCI(1B00)'", `"vpci-location-path://PCIROOT(0)#PCI(1B00)"`},
		`src=C:\a b\c.dll,dst=C:\d,options=ro`:      {`'src=C:\a b\c.dll,dst=C:\d,options=ro'`, `"src=C:\a b\c.dll,dst=C:\d,options=ro"`},
		`PCI\VEN_10DE&DEV_1EB8`:                     {`'PCI\VEN_10DE&DEV_1EB8'`, `"PCI\VEN_10DE&DEV_1EB8"`},
		`C:\ends here\`:                             {`'C:\ends here\'`, ""},
		`C:\ends\`:                                  {`'C:\ends\'`, `C:\ends\`},
		`"src=C:\a,b",ro`:                           {`'"src=C:\a,b",ro'`, ""},
		"100%":                                      {"100%", ""},
		"now!":                                      {"'now!'", ""},
		"it's":                                      {`'it'"'"'s'`, `"it's"`},
		"\u201cx\u201d":                             {"'\u201cx\u201d'", ""},
		"-a.b":                                      {"-a.b", `"-a.b"`},
		"$HOME":                                     {"'$HOME'", ""},
		"":                                          {"''", ""},
		"two\nlines":                                {},
		"no UTF-8 \xff":                             {},
		strings.Repeat("a", longestProcess):         {strings.Repeat("a", longestProcess), strings.Repeat("a", longestProcess)},
		strings.Repeat("a", longestProcess+1):       {strings.Repeat("a", longestProcess+1), ""},
	} {
		for os, want := range map[ocispec.OS]string{ocispec.Linux: want.linux, ocispec.Windows: want.windows} {
			got, err := Line(os, []string{arg})
			if got != want || (err == nil) != (want != "") || err != nil && (!errors.Is(err, ErrNotQuotable) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%s: %q is %s, %v; want %s", os, arg, got, err, want)
			}
		}
	}
}

// TestBash has the real bash read lines.
func TestBash(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	args := []string{
		"", " ", "a b", `\`, `a b\`, `"`, `a\\"b`, "'", "`", "$x", "$(x)", "!x!", "^", "&", "|", "<", ">", "(", "a;b", "--x=y z", "@(x)", "a#b", "~", "*", "?", "[a]", "{a,b}",
		`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&38DB2BD&0&0008`, "\u2018x\u2019", "\u00a0", "é", "--", "-",
	}
	line, err := Line(ocispec.Linux, args)
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
