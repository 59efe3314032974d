package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ values, want, err string }{
		"keys": {
			values: "# About all.\n\n# The a | b.\na: 1\nb:\n  # The list.\n  c: [x, {y: 1}]\n",
			want:   "| value | default | |\n|---|---|---|\n| `a` | `1` | The a \\| b. |\n| `b.c` | `[x, {y: 1}]` | The list. |\n",
		},
		"a comment of two lines":       {values: "# One\n# two.\na: ''\n", want: "| value | default | |\n|---|---|---|\n| `a` | `''` | One two. |\n"},
		"a mapping with a comment":     {values: "# All.\na:\n  b: 1\n", want: "| value | default | |\n|---|---|---|\n| `a` | `{b: 1}` | All. |\n"},
		"a key without a comment":      {values: "a:\n  b: 1\n", err: "line 2: a.b has no comment"},
		"an empty one without comment": {values: "a: {}\n", err: "line 1: a has no comment"},
		"no YAML":                      {values: "a: [\n", err: "values.yaml: "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := table([]byte(test.values))
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("%v, want %s", err, test.err)
				}
				return
			}
			if err != nil || got != test.want {
				t.Errorf("%v\n%s\nwant\n%s", err, got, test.want)
			}
		})
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	got, err := fill("a\n"+begin+"old\n"+end+"b\n", "new\n")
	if want := "a\n" + begin + "new\n" + end + "b\n"; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if _, err := fill("a\n"+end+begin, "new\n"); err == nil {
		t.Error("a page without the lines is filled")
	}
}

func TestSplice(t *testing.T) {
	t.Parallel()
	schema := "{\n  \"definitions\": {\n" + last + "{}\n  }\n}\n"
	got, err := splice(schema, []byte(`{"$id": "x", "$schema": "y", "title": "z", "required": ["kind"], "type": "object"}`))
	if want := "{\n  \"definitions\": {\n" + last + "{\n      \"type\": \"object\"\n    }\n  }\n}\n"; err != nil || got != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	if again, err := splice(got, []byte(`{"type": "object"}`)); err != nil || again != got {
		t.Errorf("a second time: %s, %v", again, err)
	}
	if _, err := splice("{}", []byte("{}")); err == nil {
		t.Error("a schema without the definition is taken")
	}
	if _, err := splice(schema, []byte("[")); err == nil {
		t.Error("what is no JSON is taken")
	}
}

// The committed files are what would be written now.
func TestCommittedFilesAreCurrent(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	rows, err := table([]byte(read("../directx-nri/values.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	page := read("../directx-nri/README.md")
	if filled, err := fill(page, rows); err != nil || filled != page {
		t.Errorf("README.md: run `make generate`: %v", err)
	}
	schema := read("../directx-nri/values.schema.json")
	if !json.Valid([]byte(schema)) {
		t.Error("values.schema.json is no JSON")
	}
	if spliced, err := splice(schema, []byte(read("../../../docs/config.schema.json"))); err != nil || spliced != schema {
		t.Errorf("values.schema.json: run `make generate`: %v", err)
	}
}
