package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPinned checks that no tag that is moved changes what the workflows run, and that no checkout keeps its token.
func TestPinned(t *testing.T) {
	t.Parallel()
	uses := regexp.MustCompile(`(?m)^ *(?:- )?uses: (.*)$|^FROM (.*)$`)
	pinned := regexp.MustCompile(`^(\./\S+|\S+@[0-9a-f]{40} # v\S+|\S+@sha256:[0-9a-f]{64})$`)
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*"))
	if err != nil || len(files) < 2 {
		t.Fatalf("%d workflows, %v", len(files), err)
	}
	for _, file := range append(files, filepath.Join(root, ".ci", "Dockerfile")) {
		data, err := os.ReadFile(file)
		found := uses.FindAllStringSubmatch(string(data), -1)
		if err != nil || len(found) == 0 {
			t.Errorf("%s uses nothing: %v", file, err)
		}
		for _, match := range found {
			if used := match[1] + match[2]; !pinned.MatchString(used) {
				t.Errorf("%s uses %s, which is neither a commit nor a digest", file, used)
			}
		}
		if checkouts := strings.Count(string(data), "uses: actions/checkout@"); checkouts != strings.Count(string(data), "persist-credentials: false") {
			t.Errorf("%s: one of %d checkouts keeps its token", file, checkouts)
		}
	}
}
