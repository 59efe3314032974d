package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	if out, err := exec.Command("make", "-C", "../..", "build-demo", "DEMO="+bin).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out bytes.Buffer
	if err := run(t.Context(), &out, "../..", bin); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for line := range strings.Lines(out.String()) {
		if columns := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); columns > width {
			t.Errorf("a line has %d columns, want %d at most: %s", columns, width, line)
		}
	}
}
