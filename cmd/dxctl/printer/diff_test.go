package printer

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

func TestDiffJSON(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, after, want string }{
		"order is no change": {`{"a":1,"b":[1]}`, `{"b":[ 1 ],"a":1}`, ""},
		"an element more": {`{"b":["x"],"a":"A&B<"}`, `{"a":"A&B<","b":["x",{"k":{}}]}`,
			"--- file\n+++ file\n@@ -1,6 +1,7 @@\n {\n   \"a\": \"A&B<\",\n   \"b\": [\n-    \"x\"\n+    \"x\",\n+    {\"k\":{}}\n   ]\n }\n"},
		"large numbers": {`{"a":18446744073709551615}`, `{"a":18446744073709551615}`, ""},
	} {
		if got, err := DiffJSON("file", []byte(test.before), []byte(test.after)); err != nil || got != test.want {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
	for _, bad := range []string{"", "{"} {
		if got, err := DiffJSON("file", []byte("{}"), []byte(bad)); err == nil {
			t.Errorf("%q: %q", bad, got)
		}
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
		if err := json.Unmarshal(pretty, &after); err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%v: %s", err, pretty)
		}
		if again, err := prettyJSON(pretty); err != nil || !bytes.Equal(again, pretty) {
			t.Errorf("a second time: %v\n%s", err, again)
		}
	})
}
