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
	pinned := regexp.MustCompile(`^(\./\S+|\S+@[0-9a-f]{40} # v\S+)$`)
	uses := regexp.MustCompile(`(?m)^ *(?:- )?uses: (.*)\n((?: .*\n){0,2})`)
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*"))
	if err != nil || len(files) < 2 {
		t.Fatalf("%d workflows, %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range uses.FindAllStringSubmatch(string(data), -1) {
			if !pinned.MatchString(step[1]) {
				t.Errorf("%s uses %s, which is not a commit", file, step[1])
			}
			if strings.HasPrefix(step[1], "actions/checkout@") && !strings.Contains(step[2], "persist-credentials: false") {
				t.Errorf("%s: a checkout keeps its token", file)
			}
		}
	}
	image, err := os.ReadFile(filepath.Join(root, ".ci", "Dockerfile"))
	if err != nil || !regexp.MustCompile(`(?m)^FROM \S+@sha256:[0-9a-f]{64}$`).Match(image) {
		t.Errorf("the image of CI is not pinned by its digest: %s (%v)", image, err)
	}
}
