package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/advertiser/config"
)

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
}

// TestSamplesAreValid: the programs accept what the documentation shows.
func TestSamplesAreValid(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(docs + "configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	configurations := 0
	for _, match := range regexp.MustCompile("(?s)(<!-- windows -->\n)?```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		sample, nodeOS := match[2], "linux"
		if !strings.Contains(sample, "apiVersion: directx.microsoft.com/") {
			continue // A part of a pod.
		}
		if match[1] != "" {
			nodeOS = "windows"
		}
		if strings.Contains(sample, "kind: Inventory") {
			if _, err := config.ParseInventory([]byte(sample)); err != nil {
				t.Errorf("%v\n%s", err, sample)
			}
			continue
		}
		configurations++
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(sample), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := (config.Compiler{File: file, Required: true, NodeOS: nodeOS, InspectOnly: true}).Compile(); err != nil {
			t.Errorf("%v\n%s", err, sample)
		}
	}
	if configurations < 4 {
		t.Errorf("%d samples", configurations)
	}
}
