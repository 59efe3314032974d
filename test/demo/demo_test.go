package main

import (
	"bytes"
	"html"
	"os"
	"os/exec"
	"regexp"
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
	picture, err := os.ReadFile("../../docs/img/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	matches := regexp.MustCompile(`<text[^>]*>(.*)</text>`).FindAllSubmatch(picture, -1)
	if len(matches) == 0 {
		t.Error("docs/img/demo.svg shows no line")
	}
	for _, match := range matches {
		line := html.UnescapeString(string(match[1]))
		// The ID differs from run to run.
		line, _, _ = strings.Cut(line, "=")
		if !strings.Contains(out.String(), "\n"+line) && line != "$ make demo" && !strings.Contains(line, "…") {
			t.Errorf("docs/img/demo.svg shows a line that is not printed: %s", line)
		}
	}
}
