package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// workflow has what the tests read of a workflow.
// https://docs.github.com/actions/reference/workflows-and-actions/workflow-syntax
type workflow struct {
	Permissions map[string]string
	Jobs        map[string]job
}

type job struct {
	Uses        string
	Needs       needs
	Permissions map[string]string
	Steps       []struct {
		Uses string
		With map[string]any
	}
}

// needs are the names of jobs, of which YAML may have one alone.
type needs []string

func (n *needs) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*n = needs{node.Value}
		return nil
	}
	return node.Decode((*[]string)(n))
}

// readWorkflows returns the workflows by their file names.
func readWorkflows(t *testing.T) map[string]workflow {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d workflows, %v", len(files), err)
	}
	all := map[string]workflow{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var w workflow
		if err := yaml.Unmarshal(data, &w); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[filepath.Base(file)] = w
	}
	return all
}

// TestPinned checks that no tag that is moved changes what the workflows run, and that no checkout keeps its token.
func TestPinned(t *testing.T) {
	t.Parallel()
	pinned := regexp.MustCompile(`^(\./\S+|\S+@[0-9a-f]{40})?$`)
	for file, w := range readWorkflows(t) {
		for name, j := range w.Jobs {
			if !pinned.MatchString(j.Uses) {
				t.Errorf("%s: job %s uses %s, which is not a commit", file, name, j.Uses)
			}
			for _, step := range j.Steps {
				if !pinned.MatchString(step.Uses) {
					t.Errorf("%s: job %s uses %s, which is not a commit", file, name, step.Uses)
				}
				if strings.HasPrefix(step.Uses, "actions/checkout@") && step.With["persist-credentials"] != false {
					t.Errorf("%s: job %s keeps its token in the checkout", file, name)
				}
			}
		}
	}
	image, err := os.ReadFile(filepath.Join(root, ".ci", "Dockerfile"))
	if err != nil || !regexp.MustCompile(`(?m)^FROM \S+@sha256:[0-9a-f]{64}$`).Match(image) {
		t.Errorf("the image of CI is not pinned by its digest: %s (%v)", image, err)
	}
}

// TestOnlyTestedReleases checks that each job of the release that can write runs after the tests, and that the one
// that builds is not among them.
func TestOnlyTestedReleases(t *testing.T) {
	t.Parallel()
	w := readWorkflows(t)["release.yaml"]
	if got := w.Jobs["test"].Uses; got != "./.github/workflows/ci.yml" {
		t.Errorf("the job test runs %q, want the tests", got)
	}
	var runsAfter func(name, earlier string) bool
	runsAfter = func(name, earlier string) bool {
		return name == earlier || slices.ContainsFunc(w.Jobs[name].Needs, func(need string) bool { return runsAfter(need, earlier) })
	}
	var writers []string
	for name, j := range w.Jobs {
		if slices.Contains(slices.Collect(maps.Values(j.Permissions)), "write") {
			writers = append(writers, name)
			if !runsAfter(name, "test") || !runsAfter(name, "build") {
				t.Errorf("the job %s can write before the tests and the build are done", name)
			}
		}
	}
	if slices.Sort(writers); !slices.Equal(writers, []string{"push", "sign"}) || len(w.Permissions) != 0 {
		t.Errorf("jobs %v can write, want push and sign; all jobs have %v", writers, w.Permissions)
	}
}
