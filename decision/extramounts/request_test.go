package extramounts

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]Request{
		"[]":                             nil,
		" [ a.exe , b\\c.exe, ] # files": {{Source: "a.exe"}, {Source: `b\c.exe`}},
		"# files\n[a.exe,\n 'b.exe']\n":  {{Source: "a.exe"}, {Source: "b.exe"}},
		`[{source: x86\tool.exe, destination: 'C:\t, 1\tool.exe', directory: SysWOW64}]`: {{Source: `x86\tool.exe`, Destination: `C:\t, 1\tool.exe`, Directory: "SysWOW64"}},
		`["a\\b.exe", 'it''s.exe', {"source": c}]`:                                       nil,
		`["a\\b.exe", 'it''s.exe', {source: "c"}]`:                                       {{Source: `a\b.exe`}, {Source: "it's.exe"}, {Source: "c"}},
		"- a.exe": {{Source: "a.exe"}},
		"\n# one\n- a, [b].exe # or two\n\n-  'b'\r\n- \"c\"": {{Source: "a, [b].exe"}, {Source: "b"}, {Source: "c"}},
		"  - source: x86\\tool.exe\n    destination: C:\\tools\\tool.exe # there\n    directory: System32\n  - b": {
			{Source: `x86\tool.exe`, Destination: `C:\tools\tool.exe`, Directory: "System32"}, {Source: "b"},
		},
		"- {source: a, destination: b}\n- C:\\a": {{Source: "a", Destination: "b"}, {Source: `C:\a`}},
		"-   source: a\n    destination: b":      {{Source: "a", Destination: "b"}},
	} {
		got, err := Parse("list", text)
		if diff := cmp.Diff(want, got); diff != "" && (want != nil || len(got) > 0) {
			t.Errorf("%q: %v (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{
		"", " \n# nothing", "a", "a: b", "[", "[a", "]", "[a]]", "[a] b", "[,]", "[a,,b]", "['a]", `["a]`, `["a" b]`, "[{]", "[{}]", "[{a}]", "[{source}]",
		"[{source: a, source: b}]", "[{source: a, more: b}]", "[[a]]", "[{source: [a]}]", "-a", "- ", "- a\n b", "- a\n  destination: b", "- a\n - b", "  - a\n- b",
		"- source: a\n   destination: b", "- source: a\n  source: b", "- source:", "- destination: b", "- source: a\n  more: b", "- 'a' b", "--- \n- a",
	} {
		if got, err := Parse("list", text); !errors.Is(err, ErrMalformed) || strings.ContainsAny(err.Error(), "\r\n") || !strings.HasPrefix(err.Error(), "list: ") {
			t.Errorf("%q: %+v, error %v", text, got, err)
		}
	}
	for _, line := range []string{"b", "  more: b", "- 'b"} {
		if _, err := Parse("list", "- source: a\n"+line+"\n- c"); err == nil || !strings.Contains(err.Error(), "line "+quote(line)+": ") {
			t.Errorf("line %q: error %v", line, err)
		}
	}
}
