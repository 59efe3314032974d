package frontend

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{0, 3, 125} {
		args := []string{"run", strconv.Itoa(status), `a "b" \`, ""}
		var out, errs bytes.Buffer
		got, err := Run(Command{Path: self, Args: args, Stdin: strings.NewReader("typed"), Stdout: &out, Stderr: &errs})
		if err != nil || got != status {
			t.Errorf("status %d, %v; want %d", got, err, status)
		}
		if want := fmt.Sprintf("%q typed", args[1:]); out.String() != want || errs.String() != "said on stderr" {
			t.Errorf("printed %s, %s; want %s", &out, &errs, want)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Find(Ctr, self); err != nil || got != self {
		t.Errorf("%s, %v", got, err)
	}
	none := filepath.Join(t.TempDir(), "none")
	for path, says := range map[string]string{none: none, "no-such-program-here": "no-such-program-here"} {
		if _, err := Find(Ctr, path); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := Find("no-such-program-here", ""); err == nil || !slices.Contains(strings.Fields(err.Error()), "--frontend") {
		t.Errorf("not on PATH: %v", err)
	}
}
