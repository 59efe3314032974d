package runflags

import (
	"errors"
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
	} {
		for os, want := range map[ocispec.OS]string{ocispec.Linux: want.linux, ocispec.Windows: want.windows} {
			got, err := Line(os, []string{arg})
			if got != want || (want == "") != errors.Is(err, ErrNotQuotable) {
				t.Errorf("%s: %q is %s, %v; want %s", os, arg, got, err, want)
			}
		}
	}
}
