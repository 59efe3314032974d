package extramounts

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]requestedFile{
		"[]":                               {},
		" a.exe\n":                         {{Source: "a.exe"}},
		"\na, [b].exe \n\n b#c\r\nC:\\d\n": {{Source: "a, [b].exe"}, {Source: "b#c"}, {Source: `C:\d`}},
		`["a\\b.exe", {"source": "C:\\t, 1", "destination": "b"}]`: {{Source: `a\b.exe`}, {Source: `C:\t, 1`, Destination: "b"}},
		" \n": nil,
	} {
		got, err := List{"list", text}.parse()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %v (-want +got):\n%s", text, err, diff)
		}
	}
	for text, says := range map[string]string{
		strings.Repeat("a", maxBytes+1): "more than 65536 bytes", "[": "not JSON", `["a"] b`: "not JSON", `["a", ["b"]]`: "not JSON",
		`[{"source": "a", "directory": "b"}]`: `unknown field "directory"`,
	} {
		got, err := List{"list", text}.parse()
		testutil.CheckError(t, fmt.Sprintf("%.20q", text), err, says)
		if !errors.Is(err, errMalformed) || got != nil {
			t.Errorf("%.20q: %+v, error %v, want %v", text, got, err, errMalformed)
		}
		if said := errlog.Text(err); strings.ContainsAny(said, "\r\n") || !strings.HasPrefix(said, "list: ") {
			t.Errorf("%.20q: error %q, want one line with the name of the list", text, said)
		}
	}
}
