package main

import (
	"strings"
	"testing"
)

func TestRunRefusals(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"run --index 0 IMAGE":                 `"IMAGE" stands before --`,
		"run --index 0 IMAGE -- ID":           `"IMAGE" stands before --`,
		"run --index 0":                       "no image is named: write it behind --",
		"run --index 0 --":                    "no image is named",
		"run -- IMAGE":                        "no GPU is named",
		"run --for docker --index 0 -- IMAGE": `"docker" is none of ctr, nerdctl`,
		"run --index 0 --with-shim --frontend no-such-program -- IMAGE": "no-such-program",
	} {
		got := transcript(t, t.TempDir(), line)
		if !strings.Contains(got, want) || strings.Count(got, "\n") != 3 {
			t.Errorf("%s says\n%s, want %q", line, got, want)
		}
	}
}
