package testutil

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//nolint:gochecknoglobals // A flag of the test's program.
var update = flag.Bool("update", false, "write the golden files: look at the difference before you commit it")

// Golden compares got with a golden file. 'go test PACKAGE -update' writes the file.
func Golden(t testing.TB, file, got string) {
	t.Helper()
	got = strings.ReplaceAll(got, "\r\n", "\n")
	if *update {
		NoError(t, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; 'go test -update' writes it", err)
	}
	if diff := cmp.Diff(strings.ReplaceAll(string(want), "\r\n", "\n"), got); diff != "" {
		t.Errorf("%s is out of date; 'go test -update' writes it (-want +got):\n%s", file, diff)
	}
}
