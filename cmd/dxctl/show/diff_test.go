package show

import "testing"

func TestDiffJSON(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, after, want string }{
		"order is no change": {`{"a":1,"b":[1]}`, `{"b":[ 1 ],"a":1}`, ""},
		"an element more": {`{"b":["x"],"a":"A&B<"}`, `{"a":"A&B<","b":["x",{"k":{}}]}`,
			"diff file file\n--- file\n+++ file\n@@ -1,6 +1,9 @@\n {\n   \"a\": \"A&B<\",\n   \"b\": [\n-    \"x\"\n+    \"x\",\n+    {\n+      \"k\": {}\n+    }\n   ]\n }\n"},
		"large numbers, and escapes": {`{"a":18446744073709551615, "b":1e400}`, `{"a":18446744073709551615,"b":1e400,"c":{"d":{},"e":"\u003c"}}`,
			"diff file file\n--- file\n+++ file\n@@ -1,4 +1,8 @@\n" +
				" {\n   \"a\": 18446744073709551615,\n-  \"b\": 1e400\n+  \"b\": 1e400,\n+  \"c\": {\n+    \"d\": {},\n+    \"e\": \"<\"\n+  }\n }\n"},
	} {
		if got, err := diffJSON("file", []byte(test.before), []byte(test.after)); err != nil || got != test.want {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
	for _, bad := range []string{"", "{"} {
		if got, err := diffJSON("file", []byte("{}"), []byte(bad)); err == nil {
			t.Errorf("%q: %q", bad, got)
		}
	}
}
