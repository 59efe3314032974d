package main

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestFindLibraries(t *testing.T) {
	t.Parallel()
	first, second := t.TempDir(), t.TempDir()
	for _, file := range []string{filepath.Join(first, "a"), filepath.Join(second, "a"), filepath.Join(second, "b")} {
		testutil.WriteFile(t, file, "", 0o600)
	}
	want := []finding{{markPassed, "library", filepath.Join(first, "a")}, {markPassed, "library", filepath.Join(second, "b")}, {"-", "library", "c is not here"}}
	if got := findLibraries([]string{first, second}, "a b c"); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
