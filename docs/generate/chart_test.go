package main

import (
	"strings"
	"testing"
)

func TestValuesList(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ values, want, err string }{
		"keys": {
			values: "# About all.\n\n# The a.\na: 1\nb:\n  # The list.\n  c: [x, {y: 1}]\n",
			want:   "a: 1\n    The a.\nb.c: [x, {y: 1}]\n    The list.\n",
		},
		"comment of two lines":    {values: "# One\n# two.\na: ''\n", want: "a\n    One two.\n"},
		"both systems":            {values: "windows:\n  # A.\n  a: 1\n  # B.\n  b: 1\nlinux:\n  # A.\n  a: 1\n  # B.\n  b: 2\n", want: "OS.a: 1\n    A.\nwindows.b: 1\n    B.\nlinux.b: 2\n    B.\n"},
		"mapping with a comment":  {values: "# All.\na:\n  b: 1\n", want: "a: {b: 1}\n    All.\n"},
		"key without a comment":   {values: "a:\n  b: 1\n", err: "a.b has no comment"},
		"empty without a comment": {values: "a: {}\n", err: "a has no comment"},
		"invalid YAML":            {values: "a: [\n", err: "line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			values, err := parse([]byte(test.values))
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %s", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := valuesList(values); err != nil || got != "```text\n"+test.want+"```\n" {
				t.Errorf("%v\n%s\nwant\n%s", err, got, test.want)
			}
		})
	}
}
