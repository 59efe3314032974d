package strictyaml

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func options() Options {
	return Options{Name: "doc", What: "annotation", MaxBytes: 200, MaxValues: 20, Empty: "write a list", Second: "put all into one"}
}

// read reads data by what, and returns the problems' lines.
func read(data string, what func(Value)) []string {
	r := NewReader(options())
	if root, ok := r.Document([]byte(data)); ok {
		what(root)
	}
	err := r.Err()
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

func TestDocumentsProblems(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ data, want string }{
		"empty":       {"", "doc:1: the annotation is empty; write a list"},
		"too long":    {strings.Repeat("#", 201), "doc:1: the annotation has 201 bytes; at most 200 are allowed"},
		"second":      {"a\n---\nb\n", "doc:2: there is a second YAML document; put all into one"},
		"no UTF-8":    {"a\n\xff", "doc:2: there are bytes that are not UTF-8 text; save the annotation as UTF-8 (without NUL and other control characters)"},
		"no anchor":   {"a: 1\nb: *c", "doc:2: the YAML that begins here cannot be read: unknown anchor 'c' referenced; correct the line or one soon below it"},
		"many values": {"&a [" + strings.Repeat("1,", 21) + "]", "doc:1: the annotation has more than 20 values, aliases counted each time; remove some"},
	} {
		got := read(test.data, func(v Value) { v.Items(100) })
		if diff := cmp.Diff([]string{test.want}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestEntries(t *testing.T) {
	t.Parallel()
	var keys, values []string
	problems := read("nvidia: a\n0x8086: b\nnvidia: c\n<<: {}\n? [x]\n: d\n", func(v Value) {
		entries, ok := v.Entries(5)
		if !ok {
			t.Fatal("no entries")
		}
		for _, e := range entries {
			key, _ := e.Key.Literal()
			value, _ := e.Value.String()
			keys, values = append(keys, key+" at "+e.Key.Path()), append(values, value)
		}
	})
	if !slices.Equal(keys, []string{"nvidia at nvidia", "0x8086 at 0x8086"}) || !slices.Equal(values, []string{"a", "b"}) {
		t.Errorf("%q, %q", keys, values)
	}
	want := []string{
		"doc:3: nvidia: is there twice, first in line 1; remove one",
		"doc:4: merge keys (<<) are not allowed; give each value an anchor and an alias of its own, or write it out",
		"doc:5: a key is not a plain name",
	}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for data, want := range map[string]string{
		"[a]":          "doc:1: must be a mapping, not a list; an empty one is written {}",
		"{a: 1, b: 2}": "doc:1: has 2 keys; at most 1 are allowed",
	} {
		if diff := cmp.Diff([]string{want}, read(data, func(v Value) { v.Entries(1) })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", data, diff)
		}
	}
}

func TestHead(t *testing.T) {
	t.Parallel()
	head := func(v Value) { v.Head("v1", "Thing", "apiVersion", "kind") }
	for data, want := range map[string][]string{
		"{apiVersion: v1, kind: Thing, unknown: 1}": nil,
		"{apiVersion: v2}":                          {`doc:1: apiVersion: the string "v2" is not known; write v1`, `doc:1: kind is missing; write "kind: Thing"`},
		"[]":                                        {"doc:1: must be a mapping with apiVersion and kind, not a list"},
	} {
		got := read(data, head)
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", data, diff)
		}
	}
}

func TestScalars(t *testing.T) {
	t.Parallel()
	got := read("[yes, 'true', 1.5, \"a\\nb\", '', !x y]", func(v Value) {
		items, _ := v.Items(10)
		items[0].Bool()
		items[1].Bool()
		items[2].Number()
		items[3].String()
		items[4].Name()
		items[5].Literal()
	})
	want := []string{
		`doc:1: [0]: must be true or false, not the string "yes"`, `doc:1: [1]: must be true or false, not the string "true"`,
		`doc:1: [2]: must be a whole number without quotes, not the number 1.5`, `doc:1: [3]: "a\nb" has a line break or a control character; write one line of text`,
		`doc:1: [4]: is empty; write a value or leave the key out`, `doc:1: [5]: must be a number or a string, not "y" with the tag !x`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProblemsAreFound(t *testing.T) {
	t.Parallel()
	r := NewReader(options())
	if r.Err() != nil {
		t.Error("a problem before anything is read")
	}
	root, _ := r.Document([]byte("a: 1\n"))
	root.Aside().Fail("is not told")
	root.Fail("is %s", "told")
	var problem Problem
	if !errors.As(r.Err(), &problem) || problem.Text != "is told" || problem.Line != 1 {
		t.Errorf("%v", r.Err())
	}
}

// FuzzDocument holds that no document makes the reader panic, whatever it is read
// as, and that each problem is one line.
func FuzzDocument(f *testing.F) {
	for _, seed := range []string{"", "a: b", "&a [*a]", "{<<: {}}", "? [a]: b", "!!int \"a\\nb\"", "- - - a", "\xff", "a: |\n b\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(options())
		root, ok := r.Document(data)
		if ok {
			walk(root, 5)
		}
		var problems Problems
		if err := r.Err(); err != nil && !errors.As(err, &problems) || !ok && len(problems) == 0 {
			t.Fatalf("document %t, error %v", ok, err)
		}
		for _, p := range problems {
			if p.Line < 1 || p.Text == "" || strings.Contains(p.Text, "\n") {
				t.Errorf("%+v", p)
			}
		}
	})
}

// walk reads v as everything.
func walk(v Value, depth int) {
	if depth == 0 {
		return
	}
	v.String()
	v.Name()
	v.Literal()
	v.Number()
	v.Bool()
	v.Object("a", "b")
	v.Head("v1", "Thing", "apiVersion", "kind")
	items, _ := v.Items(10)
	for _, item := range items {
		walk(item, depth-1)
	}
	entries, _ := v.Entries(10)
	for _, e := range entries {
		walk(e.Value, depth-1)
	}
}
