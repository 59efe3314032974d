package tomledit

import (
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// edited returns an editor of text after edits.
func edited(t *testing.T, text string, edit func(*Editor)) *Editor {
	t.Helper()
	d, err := Parse([]byte(text))
	testutil.NoError(t, err)
	e := &Editor{Document: d}
	edit(e)
	testutil.NoError(t, e.Err)
	return e
}

// TestUndo: an edit can be undone after others have changed the text. The tests of containerdconfig
// have more texts.
func TestUndo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text         string
		edit         func(*Editor)
		want         string
		from, to     string // what others replace
		undone, note string
	}{
		"key":     {"[a]\n  b = 1 # c\n", func(e *Editor) { e.Set([]string{"a"}, "b", int64(2)) }, "[a]\n  b = 2 # c\n", "[a]", "[x]\n[a]", "[x]\n[a]\n  b = 1 # c\n", ""},
		"new key": {"[a]\n  b = 1\n[c]\n", func(e *Editor) { e.Set([]string{"a"}, "d", "e") }, "[a]\n  b = 1\n  d = 'e'\n[c]\n", "b = 1", "b = 2", "[a]\n  b = 2\n[c]\n", ""},
		"new table": {"a = 1", func(e *Editor) { e.SetTable([]string{"b.c"}, map[string]any{"e": true, "d": false}) },
			"a = 1\n\n['b.c']\n  d = false\n  e = true", "e = true", "e = true\n  f = 1\n", "a = 1\n\n['b.c']\n  f = 1\n", "has further keys"},
		"item":        {"[a]\nb = ['x', # x\n]\n", func(e *Editor) { e.AddItem([]string{"a"}, "b", "i*", nil) }, "[a]\nb = ['i*', 'x', # x\n]\n", "'x'", "'y'", "[a]\nb = ['y', # x\n]\n", ""},
		"new list":    {"[a]\n", func(e *Editor) { e.AddItem([]string{"a"}, "b", "i*", []string{"x"}) }, "[a]\n  b = ['i*', 'x']\n", "'x'", `"y"`, "[a]\n  b = [\"y\"]\n", ""},
		"other value": {"[a]\nb = 1\n", func(e *Editor) { e.Set([]string{"a"}, "b", int64(2)) }, "[a]\nb = 2\n", "2", "3", "[a]\nb = 3\n", "line 2: a.b was changed since"},
	} {
		e := edited(t, test.text, test.edit)
		if got := string(e.Bytes()); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		if got := string(edited(t, test.want, func(u *Editor) { u.Undo(e.Edits, "i*") }).Bytes()); got != test.text {
			t.Errorf("%s: undone: %q", name, got)
		}
		u := edited(t, strings.Replace(test.want, test.from, test.to, 1), func(u *Editor) { u.Undo(e.Edits, "i*") })
		if got := string(u.Bytes()); got != test.undone || (test.note == "") != (len(u.Notes) == 0) || !strings.Contains(strings.Join(u.Notes, "\n"), test.note) {
			t.Errorf("%s: undone after a change: %q, %q", name, got, u.Notes)
		}
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	e := edited(t, "a = 1\nb = ['x', 'y']\n", func(e *Editor) {
		e.Remove([]string{"a"})
		e.Remove([]string{"none"})
		e.RemoveItem([]string{"b"}, "x")
	})
	if got := string(e.Bytes()); got != "b = ['y']\n" || !slices.Equal(Strings(e.Values, "b"), []string{"y"}) {
		t.Errorf("%q", got)
	}
}
