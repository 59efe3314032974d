package reference

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"directx-nri/internal/config"
)

const (
	docs = "../../../docs/"
	head = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"
)

// compile returns the published schema.
func compile(t testing.TB) *jsonschema.Schema {
	t.Helper()
	f, err := os.Open(docs + "config.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	schema, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	if err := compiler.AddResource("config.schema.json", schema); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("config.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// instance returns a YAML file as what a JSON Schema is for.
func instance(t testing.TB, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	data, err := json.Marshal(withTextKeys(v))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func withTextKeys(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			v[key] = withTextKeys(value)
		}
	case map[any]any:
		result := map[string]any{}
		for key, value := range v {
			result[fmt.Sprint(key)] = withTextKeys(value)
		}
		return result
	case []any:
		for i := range v {
			v[i] = withTextKeys(v[i])
		}
	}
	return v
}

func TestPublishedFilesAreUpToDate(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the defaults in the tables are Linux', and Windows' beside them")
	}
	schema, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(string) (string, error){
		"config.schema.json": func(string) (string, error) { return string(schema), nil },
		"configuration.md":   Fill,
	} {
		published, err := os.ReadFile(docs + name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := make(string(published))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(published)); diff != "" {
			t.Errorf("docs/%s is not as 'make generate' makes it (-want +got):\n%s", name, diff)
		}
	}
	if _, err := Fill("no tables"); err == nil {
		t.Error("a page without places passes")
	}
}

// blocks returns the YAML blocks of a page.
func blocks(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(docs + page)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, match := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		list = append(list, match[1])
	}
	if len(list) == 0 {
		t.Fatalf("%s has no YAML", page)
	}
	return list
}

// TestSamplesPassBoth holds that the programs and the schema take what the
// documentation shows.
func TestSamplesPassBoth(t *testing.T) {
	t.Parallel()
	schema := compile(t)
	samples := append(blocks(t, "configuration.md"), blocks(t, "migration.md")...)
	// These pages show parts of a file.
	for _, page := range []string{"extra-mounts.md", "kubelet-injection.md", "metrics.md"} {
		parts := 0
		for _, part := range blocks(t, page) {
			if !strings.HasPrefix(part, "metadata:") {
				samples, parts = append(samples, head+"containerOS: windows\n"+part), parts+1
			}
		}
		if parts == 0 {
			t.Errorf("docs/%s shows no configuration", page)
		}
	}
	files, err := filepath.Glob("../../../deployments/config/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		samples = append(samples, string(text))
	}
	for _, text := range samples {
		if _, err := config.Parse([]byte(text)); err != nil {
			t.Errorf("%v:\n%s", err, text)
		}
		if err := schema.Validate(instance(t, text)); err != nil {
			t.Errorf("%v:\n%s", err, text)
		}
	}
}

// TestExamplesPassBoth holds that each key's example in the tables can be written
// in a file, so that every key of the tables is one that programs read.
func TestExamplesPassBoth(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the examples' paths are Linux'")
	}
	schema := compile(t)
	for path, text := range examples() {
		if _, err := config.Parse([]byte(text)); err != nil {
			t.Errorf("%s: %v:\n%s", path, err, text)
		}
		if err := schema.Validate(instance(t, text)); err != nil {
			t.Errorf("%s: %v:\n%s", path, err, text)
		}
	}
}

// examples returns a file for each key, with its example.
func examples() map[string]string {
	files := map[string]string{}
	for _, s := range config.Settings() {
		extra := ""
		section, key, below := strings.Cut(s.Key, ".")
		line := s.Key + ": " + s.Example + "\n"
		if below {
			line = section + ": {" + key + ": " + s.Example + "}\n"
		}
		files[s.Key] = head + extra + line
	}
	for _, k := range Keys() {
		files[k.Path] = head + "containerOS: windows\n" + nest(k.Path, k.Example)
	}
	return files
}

// nest puts a value at a path, in YAML's flow style.
func nest(path, value string) string {
	elements := strings.Split(path, ".")
	for _, element := range slices.Backward(elements) {
		name, isList := strings.CutSuffix(element, "[]")
		if name == "VENDOR" {
			name = "nvidia"
		}
		needs := ""
		switch {
		case isList && name == "resources" && !strings.HasPrefix(value, "{name:"):
			needs = "name: a.b/c, "
		case isList && name == "add" && !strings.HasPrefix(value, "{source:"):
			needs = "source: x.dll, "
		}
		if isList {
			value = "[" + strings.Replace(value, "{", "{"+needs, 1) + "]"
		}
		value = "{" + name + ": " + value + "}"
	}
	return strings.TrimSuffix(strings.TrimPrefix(value, "{"), "}") + "\n"
}

// TestTablesHaveEveryKey asks the reader for its keys, which it tells in the error
// about one that it does not know.
func TestTablesHaveEveryKey(t *testing.T) {
	t.Parallel()
	published := map[string]bool{"apiVersion": true, "kind": true}
	page, err := os.ReadFile(docs + "configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for path := range examples() {
		section, _, _ := strings.Cut(path, ".")
		published[path], published[section] = true, true
		if !strings.Contains(string(page), "| `"+path+"` |") {
			t.Errorf("docs/configuration.md does not have %s", path)
		}
	}
	for _, place := range []string{
		"", "kubelet", "containerd", "shim", "log", "metrics", "extraMounts", "resources[]", "resources[].match", "resources[].match.dedicatedMemory",
		"resources[].match.driverVersion", "runtimeFiles.VENDOR", "runtimeFiles.VENDOR.add[]",
	} {
		path := strings.TrimPrefix(place+".nope", ".")
		text := head + nest(path, "1")
		_, err := config.Parse([]byte(text))
		if err == nil {
			t.Errorf("%s: an unknown key passes", place)
			continue
		}
		_, list, found := strings.Cut(err.Error(), `the key "nope" is not known; allowed are `)
		if !found {
			t.Errorf("%s: %v", place, err)
			continue
		}
		list, _, _ = strings.Cut(list, ";")
		for _, key := range strings.Split(strings.ReplaceAll(list, " and ", ", "), ", ") {
			if path := strings.TrimPrefix(place+"."+key, "."); !published[path] {
				t.Errorf("%s is read and in no table", path)
			}
		}
		if compile(t).Validate(instance(t, text)) == nil {
			t.Errorf("%s: the schema takes an unknown key", place)
		}
	}
}

// TestWrongFilesFailBoth are the mistakes that a schema can tell.
func TestWrongFilesFailBoth(t *testing.T) {
	t.Parallel()
	schema := compile(t)
	for name, text := range map[string]string{
		"no head":            "replicas: 2\n",
		"other kind":         "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\n",
		"unknown key":        head + "statedir: /x\n",
		"unknown key below":  head + "log: {colour: red}\n",
		"no mapping":         head + "shim: x\n",
		"no replicas":        head + "replicas: 0\n",
		"too many replicas":  head + "replicas: 1025\n",
		"replicas as text":   head + "replicas: '2'\n",
		"empty path":         head + "stateDir: ''\n",
		"choice":             head + "injection: magic\n",
		"hints by a boolean": head + "visibilityHints: false\n",
		"no boolean":         head + "failOnInitError: 'true'\n",
		"index":              head + "containerd: {nriIndex: '7'}\n",
		"no rules":           head + "resources: []\n",
		"preset and rules":   head + "preset: alibaba\nresources: [{name: a.b/c}]\n",
		"rule without name":  head + "resources: [{replicas: 2}]\n",
		"rule's replicas":    head + "resources: [{name: a.b/c, replicas: 0}]\n",
		"name":               head + "resources: [{name: gpu}]\n",
		"name's end":         head + "resources: [{name: a.b/c-}]\n",
		"Kubernetes' domain": head + "resources: [{name: x.kubernetes.io/gpu}]\n",
		"quota's domain":     head + "resources: [{name: requests.a/gpu}]\n",
		"kind":               head + "resources: [{name: a.b/c, match: {kind: render}}]\n",
		"vendor":             head + "resources: [{name: a.b/c, match: {vendor: Nvidia}}]\n",
		"no vendors":         head + "resources: [{name: a.b/c, match: {vendor: []}}]\n",
		"empty glob":         head + "resources: [{name: a.b/c, match: {description: ''}}]\n",
		"memory":             head + "resources: [{name: a.b/c, match: {dedicatedMemory: {min: 8GB}}}]\n",
		"version":            head + "resources: [{name: a.b/c, match: {driverVersion: {max: new}}}]\n",
		"policy":             head + "resources: [{name: a.b/c, allocationPolicy: random}]\n",
		"mixed by a boolean": head + "resources: [{name: a.b/c, mixedDrivers: true}]\n",
		"vendor of files":    head + "runtimeFiles: {matrox: {}}\n",
		"file by a drive":    head + "runtimeFiles: {nvidia: {add: ['C:\\x']}}\n",
		"file without name":  head + "runtimeFiles: {nvidia: {add: [{folder: System32}]}}\n",
		"folder":             head + "runtimeFiles: {nvidia: {add: [{source: x, folder: Temp}]}}\n",
		"mounts":             head + "extraMounts: {sources: all}\n",
		"no number of them":  head + "extraMounts: {max: 0}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := config.Parse([]byte(text)); err == nil {
				t.Error("the programs take it")
			}
			if err := schema.Validate(instance(t, text)); err == nil {
				t.Error("the schema takes it")
			}
		})
	}
}
