package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"directx-nri/internal/config"
)

const head = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"

// TestMain runs in the directory of package config, as the program does.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	m.Run()
}

func TestGeneratedFilesAreCurrent(t *testing.T) {
	t.Parallel()
	files, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
			t.Errorf("%s: run `make generate` (%v)\n%s", path, err, cmp.Diff(string(got), string(want)))
		}
	}
	if _, err := fill("no tables", map[string]string{"values": ""}); err == nil {
		t.Error("no error for a page without tables")
	}
}

func TestEachKeyHasADescription(t *testing.T) {
	t.Parallel()
	schema, err := buildSchema()
	if err != nil {
		t.Fatal(err)
	}
	all := rows("", schema)
	flags := config.FlagNames()
	for _, r := range all {
		if len(r.description) < 10 {
			t.Errorf("%s: %q", r.path, r.description)
		}
		delete(flags, r.path)
	}
	if len(all) < 30 || len(flags) > 0 {
		t.Errorf("%d keys; flags without a key: %v", len(all), flags)
	}
}

// validate returns the errors of the published schema and of the compiler.
func validate(t *testing.T, nodeOS, text string) (schemaErr, compileErr error) {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(docs + "config.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var instance any
	if err := json.Unmarshal(asJSON, &instance); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, compileErr = config.Compiler{File: file, Required: true, NodeOS: nodeOS, Inspect: true}.Compile()
	return schema.Validate(instance), compileErr
}

// TestSamplesAreValid: what the documentation shows is valid for the schema and for
// the programs.
func TestSamplesAreValid(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(docs + "configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	configurations := 0
	for _, match := range regexp.MustCompile("(?s)(<!-- windows -->\n)?```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		sample, nodeOS := match[2], "linux"
		if match[1] != "" {
			nodeOS = "windows"
		}
		if strings.Contains(sample, "kind: Inventory") {
			if _, err := config.ParseInventory("inventory", []byte(sample)); err != nil {
				t.Errorf("%v\n%s", err, sample)
			}
			continue
		}
		configurations++
		if schemaErr, compileErr := validate(t, nodeOS, sample); schemaErr != nil || compileErr != nil {
			t.Errorf("schema: %v, compiler: %v\n%s", schemaErr, compileErr, sample)
		}
	}
	if configurations < 5 {
		t.Errorf("%d samples", configurations)
	}
}

// TestSchemaAgreesWithCompiler compares the two on single keys.
func TestSchemaAgreesWithCompiler(t *testing.T) {
	t.Parallel()
	for text, valid := range map[string]bool{
		"": true, "replicas: 4": true, "replicas: 0": false, "replicas: many": false, "unknown: 1": false, "log: {unknown: 1}": false,
		"preset: tensorworks": true, "preset: ''": true, "preset: other": false, "assignmentMode: guid": false, "injection: kubelet": true, "servedBy: cdi": false,
		"visibilityHints: false": true, "visibilityHints: some": false, "failOnInitError: true": true, "inventory: 3": false, "inventory: ''": true,
		"resources: []": false, "resources: [{}]": false, "resources: [{name: a.b/c}]": true, "resources: [{name: a.b/c, unknown: 1}]": false,
		"resources: [{name: a.b/c, match: {vendor: [nvidia, 0x1A03]}}]": true, "resources: [{name: a.b/c, match: {vendor: 4318}}]": true, "resources: [{name: a.b/c, match: {vendor: []}}]": false,
		"resources: [{name: a.b/c, match: {description: '*T4*', locationPath: [a, b]}}]": true, "resources: [{name: a.b/c, match: {driverVersion: {min: 31.0, max: '32'}}}]": true,
		"resources: [{name: a.b/c, match: {dedicatedMemory: {min: 16106127360}}}]": true, "resources: [{name: a.b/c, match: {dedicatedMemory: 15Gi}}]": false,
		"resources: [{name: a.b/c, match: {integrated: false}}]": true, "resources: [{name: a.b/c, allocationPolicy: random}]": false, "resources: [{name: a.b/c, exclusiveRequests: true}]": false,
		"runtimeFiles: {nvidia: {defaults: false, remove: ['*.txt'], add: [a.exe, {source: b, directory: SysWOW64}]}}": true, "runtimeFiles: {nvidia: {add: [{destination: b}]}}": false,
		"runtimeFiles: {nvidia: {add: [{source: b, folder: SysWOW64}]}}": false, "runtimeFiles: {'0x1A03': {}}": true,
		"extraMounts: {sources: 'off', max: 3}": true, "extraMounts: {sources: host-directories, hostDirectories: [/opt/models]}": true, "extraMounts: {destinations: []}": false, "extraMounts: {max: 0}": false,
		"shim: {runtime: x, log: /y}": true, "log: {level: debug, format: json}": true, "log: {level: loud}": false, "metrics: {address: ':80'}": true,
	} {
		schemaErr, compileErr := validate(t, "linux", head+text+"\n")
		if (schemaErr == nil) != valid || (compileErr == nil) != valid {
			t.Errorf("%q: schema: %v, compiler: %v; want valid %t", text, schemaErr, compileErr, valid)
		}
	}
}
