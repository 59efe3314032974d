package notices

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

const mit = `Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.`

func apache(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestLicenceIsWhatTheFilesSay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		texts []Text
		want  string
	}{
		"one file":                       {[]Text{{"LICENSE", mit}}, "MIT"},
		"several files count together":   {[]Text{{"LICENSE", apache(t)}, {"LICENSE-MIT", mit}}, "Apache-2.0 AND MIT"},
		"nothing known":                  {[]Text{{"LICENSE", "Do what you want on Tuesdays."}}, NoAssertion},
		"a part unknown":                 {[]Text{{"LICENSE", mit}, {"LICENSE.other", "But not on Mondays."}}, NoAssertion},
		"a notice says nothing":          {[]Text{{"LICENSE", mit}, {"NOTICE", "Thanks to all."}}, "MIT"},
		"copying beside real licences":   {[]Text{{"COPYING.md", "See the others."}, {"LICENSE", mit}}, NoAssertion},
		"below the root is others' code": {[]Text{{"LICENSE", mit}, {"third_party/x/LICENSE", apache(t)}}, "MIT"},
		"no licence file":                {[]Text{{"NOTICE", mit}}, NoAssertion},
	} {
		if got := expression(c.texts); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// tree makes a module cache with the files that are named.
func tree(t *testing.T, content map[string]string) Tree {
	t.Helper()
	dir := t.TempDir()
	made := Tree{ModCache: filepath.Join(dir, "mod"), GoRoot: filepath.Join(dir, "go"), GoVersion: "go1.26.8"}
	content["go/LICENSE"] = mit
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return made
}

func TestLicencesAreCollectedFromTheModuleCache(t *testing.T) {
	t.Parallel()
	made := tree(t, map[string]string{
		"mod/example.com/!big/thing@v1.0.0/LICENSE":             mit,
		"mod/example.com/!big/thing@v1.0.0/inner/copying.txt":   "Somebody else's.",
		"mod/example.com/!big/thing@v1.0.0/license.go":          "package thing",
		"mod/example.com/!big/thing@v1.0.0/testdata/x/LICENSE":  "Not compiled in.",
		"mod/example.com/!big/thing@v1.0.0/licensing/README.md": "About.",
	})
	components, err := made.Collect([]debug.Module{{Path: "example.com/Big/thing", Version: "v1.0.0", Sum: "h1:x="}})
	if err != nil {
		t.Fatal(err)
	}
	if len(components) != 2 || components[0].Path != "example.com/Big/thing" || components[1].Path != "stdlib" {
		t.Fatalf("the components are %+v, want the module and the standard library", components)
	}
	thing := components[0]
	if len(thing.Texts) != 2 || thing.Texts[0].Name != "LICENSE" || thing.Texts[1].Name != "inner/copying.txt" {
		t.Errorf("the files are %+v, want LICENSE and inner/copying.txt", thing.Texts)
	}
	if want := "https://proxy.golang.org/example.com/!big/thing/@v/v1.0.0.zip"; thing.Source != want {
		t.Errorf("the source is %s, want %s", thing.Source, want)
	}
	if components[1].Version != "v1.26.8" {
		t.Errorf("the standard library has the version %s, want v1.26.8", components[1].Version)
	}
}

func TestModuleWithoutLicenceIsNotHandedOn(t *testing.T) {
	t.Parallel()
	made := tree(t, map[string]string{"mod/example.com/thing@v1.0.0/main.go": "package main"})
	for _, m := range []debug.Module{
		{Path: "example.com/thing", Version: "v1.0.0"},
		{Path: "example.com/missing", Version: "v1.0.0"},
		{Path: "../fork", Version: "v1.0.0"},
	} {
		if _, err := made.Collect([]debug.Module{m}); err == nil {
			t.Errorf("%s was collected", m.Path)
		}
	}
}

func TestDocumentHasEachTextOnce(t *testing.T) {
	t.Parallel()
	text := string(Document("thing", []Component{
		{Path: "a", Version: "v1.0.0", License: "MIT", Texts: []Text{{"LICENSE", mit}}},
		{Path: "b", Version: "v2.0.0", License: "MIT", Texts: []Text{{"LICENSE", mit}, {"NOTICE", "Thanks."}}},
	}))
	if n := strings.Count(text, "Permission is hereby granted"); n != 1 {
		t.Errorf("the licence is there %d times", n)
	}
	for _, want := range []string{"a v1.0.0 (LICENSE)", "b v2.0.0 (LICENSE)", "b v2.0.0 (NOTICE)", "Thanks."} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the document", want)
		}
	}
}
