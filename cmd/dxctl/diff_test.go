package main

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestJSONDiff(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, after, want string }{
		"order is no change": {`{"a":1,"b":[1]}`, `{"b":[ 1 ],"a":1}`, ""},
		"an element more": {`{"b":["x"],"a":"A&B<"}`, `{"a":"A&B<","b":["x",{"k":{}}]}`,
			"--- old\n+++ new\n@@ -1,6 +1,7 @@\n {\n   \"a\": \"A&B<\",\n   \"b\": [\n-    \"x\"\n+    \"x\",\n+    {\"k\":{}}\n   ]\n }\n"},
		"large numbers": {`{"a":18446744073709551615}`, `{"a":18446744073709551615}`, ""},
	} {
		if got, err := jsonDiff("old", "new", []byte(test.before), []byte(test.after)); err != nil || got != test.want {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
	for _, bad := range []string{"", "{", "{} {}"} {
		if got, err := jsonDiff("old", "new", []byte("{}"), []byte(bad)); err == nil {
			t.Errorf("%q: %q", bad, got)
		}
	}
}

// The line numbers in hunk headers are correct in both documents.
func TestHunkHeaders(t *testing.T) {
	t.Parallel()
	// Pairs of edits that share a hunk, and lines between that none has.
	before := `{"a":1,"c":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":1,"o":1,"q":1,"r":1,"s":1,"t":1,"u":1,"v":1,"w":1,"x":1}`
	after := `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":2,"q":1,"r":1,"s":1,"t":1,"u":1,"v":1,"w":1,"x":[0]}`
	for _, pair := range [][2]string{{before, after}, {after, before}, {`{}`, after}, {after, `{}`}} {
		diff, err := jsonDiff("old", "new", []byte(pair[0]), []byte(pair[1]))
		if err != nil {
			t.Fatal(err)
		}
		checkHunks(t, diff, pair[0], " -", `-(\d+)`)
		checkHunks(t, diff, pair[1], " +", `\+(\d+)`)
	}
}

// checkHunks looks for the lines of diff that begin with one of marks in a
// document, where begin finds their number in a hunk's head.
func checkHunks(t *testing.T, diff, document, marks, begin string) {
	t.Helper()
	pretty, err := prettyJSON([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	lines, at := strings.Split(pretty, "\n"), 0
	for _, line := range strings.Split(strings.TrimSuffix(diff, "\n"), "\n")[2:] {
		if number := regexp.MustCompile(`^@@ .*` + begin).FindStringSubmatch(line); number != nil {
			at, _ = strconv.Atoi(number[1])
			continue
		}
		if !strings.Contains(marks, line[:1]) {
			continue
		}
		if at < 1 || at > len(lines) || lines[at-1] != line[1:] {
			t.Errorf("line %d is not %q, as in\n%s", at, line[1:], diff)
			return
		}
		at++
	}
}

func TestTextDiff(t *testing.T) {
	t.Parallel()
	for name, test := range map[string][2]string{
		"@@ -0,0 +1,2 @@": {"", "a\nb\n"},
		"@@ -1,2 +0,0 @@": {"a\nb\n", ""},
	} {
		if diff := textDiff("old", "new", test[0], test[1]); !strings.Contains(diff, name+"\n") {
			t.Errorf("no %q in %q", name, diff)
		}
	}
	if diff := textDiff("old", "new", "a\n", "a\n"); diff != "" {
		t.Errorf("of the same text: %q", diff)
	}
}

func FuzzPrettyJSON(f *testing.F) {
	f.Add([]byte(`{"ociVersion":"1.1.0","process":{"env":["A=\u003cb\u003e"]},"linux":{},"x":[]}`))
	f.Add([]byte(`[1e400, null, "\ud800"]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		pretty, err := prettyJSON(data)
		if err != nil {
			return
		}
		var before, after any
		if json.Unmarshal(data, &before) != nil {
			return // A number that no float holds.
		}
		if err := json.Unmarshal([]byte(pretty), &after); err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%v: %s", err, pretty)
		}
		if again, err := prettyJSON([]byte(pretty)); err != nil || again != pretty {
			t.Errorf("a second time: %v\n%s", err, again)
		}
	})
}
