package terminal

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/clipperhouse/displaywidth"
	"github.com/google/go-cmp/cmp"
)

func TestAPipeIsNoTerminal(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = reader.Close(), writer.Close() })
	none := func(string) string { return "" }
	if got := Of(writer, none); got != (Terminal{}) {
		t.Errorf("a pipe: %+v", got)
	}
	if got := Of(&bytes.Buffer{}, none); got != (Terminal{}) {
		t.Errorf("memory: %+v", got)
	}
}

func TestColor(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env  map[string]string
		want bool
	}{
		"usual":          {nil, true},
		"NO_COLOR":       {map[string]string{"NO_COLOR": "1"}, false},
		"NO_COLOR empty": {map[string]string{"NO_COLOR": ""}, true},
		"dumb":           {map[string]string{"TERM": "dumb"}, false},
	} {
		if got := wantsColor(func(name string) string { return test.env[name] }); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if got := (Terminal{Color: true}).Paint(Bad, "x"); got != "\x1b[31mx\x1b[0m" {
		t.Errorf("%q", got)
	}
	if got := (Terminal{}).Paint(Bad, "x"); got != "x" {
		t.Errorf("without colour: %q", got)
	}
	if got := (Terminal{Color: true}).Paint(Plain, "x"); got != "x" {
		t.Errorf("plain: %q", got)
	}
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"NVIDIA Tesla T4":      "NVIDIA Tesla T4",
		"a\tb\r\nc\u00a0d":     "a b  c d",
		"\x1b[2Jgone\x07\x7f":  "�[2Jgone��",
		"\u009b31m":            "�31m",
		"evil\u202etxt":        "evil�txt",
		"日本 Ω é":               "日本 Ω é",
		"not \xff UTF-8":       "not � UTF-8",
		"\x1b]0;title\x1b\\ok": "�]0;title�\\ok",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func gpus() *Table {
	t := &Table{Columns: []Column{
		{Title: "INDEX", Right: true}, {Title: "NAME", Give: 1, Least: 6}, {Title: "VENDOR", Give: 2}, {Title: "PATH", Give: 3, Least: 8}, {Title: "HEALTH"},
	}}
	t.Add(Cell{Text: "0"}, Cell{Text: "NVIDIA Tesla T4"}, Cell{Text: "NVIDIA"}, Cell{Text: "PCIROOT(0)#PCI(1B00)"}, Cell{"healthy", Good})
	t.Add(Cell{Text: "10"}, Cell{Text: "日本のGPU"}, Cell{}, Cell{}, Cell{"code\n43", Bad})
	return t
}

func TestTable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		to   Terminal
		want string
	}{
		"a file": {Terminal{}, `
INDEX  NAME             VENDOR  PATH                  HEALTH
    0  NVIDIA Tesla T4  NVIDIA  PCIROOT(0)#PCI(1B00)  healthy
   10  日本のGPU                                      code 43
`},
		"wide enough": {Terminal{Width: 61}, `
INDEX  NAME             VENDOR  PATH                  HEALTH
    0  NVIDIA Tesla T4  NVIDIA  PCIROOT(0)#PCI(1B00)  healthy
   10  日本のGPU                                      code 43
`},
		"one gives way": {Terminal{Width: 55}, `
INDEX  NAME       VENDOR  PATH                  HEALTH
    0  NVIDIA T…  NVIDIA  PCIROOT(0)#PCI(1B00)  healthy
   10  日本のGPU                                code 43
`},
		"wide letters are cut": {Terminal{Width: 53}, `
INDEX  NAME     VENDOR  PATH                  HEALTH
    0  NVIDIA…  NVIDIA  PCIROOT(0)#PCI(1B00)  healthy
   10  日本の…                                code 43
`},
		"one goes, and leaves room": {Terminal{Width: 46}, `
INDEX  NAME      PATH                  HEALTH
    0  NVIDIA …  PCIROOT(0)#PCI(1B00)  healthy
   10  日本のG…                        code 43
`},
		"all give": {Terminal{Width: 32}, `
INDEX  NAME    PATH      HEALTH
    0  NVIDI…  PCIROOT…  healthy
   10  日本…             code 43
`},
		"too narrow": {Terminal{Width: 28}, `
INDEX  NAME    PATH      HE…
    0  NVIDI…  PCIROOT…  he…
   10  日本…             co…
`},
	} {
		var out bytes.Buffer
		if err := gpus().Print(&out, test.to); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.TrimPrefix(test.want, "\n"), out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestTableInColor(t *testing.T) {
	t.Parallel()
	var plain, colored bytes.Buffer
	if err := gpus().Print(&plain, Terminal{Width: 40}); err != nil {
		t.Fatal(err)
	}
	if err := gpus().Print(&colored, Terminal{Width: 40, Color: true}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(colored.String(), "\x1b[1mINDEX\x1b[0m") || !strings.Contains(colored.String(), "\x1b[31mcode 43\x1b[0m") {
		t.Errorf("%q", colored.String())
	}
	bare := colored.String()
	for _, style := range []string{"0", "1", "31", "32"} {
		bare = strings.ReplaceAll(bare, "\x1b["+style+"m", "")
	}
	if diff := cmp.Diff(plain.String(), bare); diff != "" {
		t.Errorf("colours change the text (-plain +coloured):\n%s", diff)
	}
}

func FuzzTable(f *testing.F) {
	f.Add("NVIDIA Tesla T4", "日本のGPU", 20)
	f.Add("\x1b[2J", "e\u0301\u200d👩‍👩‍👧", 7)
	f.Add("", "\xff", 1)
	f.Fuzz(func(t *testing.T, a, b string, width int) {
		if width < 0 {
			t.Skip()
		}
		table := &Table{Columns: []Column{{Title: "A", Give: 1, Least: 3}, {Title: "B", Right: true, Give: 2}, {Title: "C"}}}
		table.Add(Cell{Text: a}, Cell{Text: b}, Cell{Text: a + b})
		var out bytes.Buffer
		if err := table.Print(&out, Terminal{Width: width}); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != 2 || !utf8.ValidString(out.String()) {
			t.Fatalf("%q", out.String())
		}
		for _, line := range lines {
			if width > 0 && displaywidth.String(line) > width {
				t.Errorf("%q is wider than %d", line, width)
			}
			if strings.ContainsFunc(line, unicode.IsControl) {
				t.Errorf("control characters in %q", line)
			}
		}
	})
}
