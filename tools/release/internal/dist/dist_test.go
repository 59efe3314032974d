package dist

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestReleasesHaveVersionsOfTheRightForm(t *testing.T) {
	t.Parallel()
	for version, ok := range map[string]bool{
		"v0.1.0": true, "v1.0.0-rc.1": true, "0.1.0": false, "v0.1": false, "fe06f5c-dirty": false, "": false, "v1.0.0+build": false,
	} {
		if err := CheckVersion(version); (err == nil) != ok {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestTreeLeavesSourcesAndHiddenFilesOut(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"docs/a.md": "text", "docs/a_test.go": "package docs", "docs/.hidden": "", "docs/.git/x": "", "docs/in/run.sh": "#!/bin/sh\n", "other/b.md": "",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := Tree(root, "docs")
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Name != "docs/a.md" || list[0].Mode != 0o644 || list[1].Name != "docs/in/run.sh" || list[1].Mode != 0o755 {
		t.Errorf("the files are %+v, want a.md (644) and in/run.sh (755)", list)
	}
	if _, err := Tree(root, "missing"); err == nil {
		t.Error("a missing folder is no error")
	}
}

func TestChecksumsAreThoseThatSha256sumTakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"directx-nri-a", "directx-nri-b", ChecksumsFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Checksums(dir); err != nil {
		t.Fatal(err)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", ChecksumsFile)
	check.Dir = dir
	out, err := check.CombinedOutput()
	if err != nil || strings.Count(string(out), ": OK") != 2 {
		t.Errorf("sha256sum says %v\n%s", err, out)
	}
}

func TestOnlyAnOldReleaseIsCleared(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "release")
	if err := Clear(dir); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(dir, "directx-nri-v0.0.1.tar")
	if err := os.WriteFile(old, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "thesis.doc")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Clear(dir); err == nil {
		t.Error("a folder with somebody's files was cleared")
	}
	if _, err := os.Stat(old); err != nil {
		t.Errorf("a part was removed: %v", err)
	}
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	if err := Clear(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("the old release is there still")
	}
}
