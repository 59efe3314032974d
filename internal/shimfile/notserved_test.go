package shimfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNotServed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	check := func(when string, wantOK bool, wantShim string) {
		t.Helper()
		if n, ok, err := ReadNotServed(dir); ok != wantOK || n.Shim != wantShim || err != nil {
			t.Errorf("%s: %+v, %t, %v", when, n, ok, err)
		}
	}
	check("no directory", false, "")
	if err := ClearNotServed(dir); err != nil {
		t.Error(err)
	}
	mark := NotServed{Shim: "/bin/shim", Version: 3}
	for range 2 {
		if err := WriteNotServed(dir, mark); err != nil {
			t.Fatal(err)
		}
		check("written", true, mark.Shim)
	}
	if text := mark.String(); !strings.Contains(text, "/bin/shim answers with bootstrap version 3") {
		t.Error(text)
	}
	if err := os.WriteFile(filepath.Join(dir, "not-served.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("damaged", true, "(unknown)")
	if err := ClearNotServed(dir); err != nil {
		t.Error(err)
	}
	check("cleared", false, "")
}
