package doctor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWSLFacts(t *testing.T) {
	t.Parallel()
	for kernel, want := range map[string]*wslState{
		"6.6.87.2-microsoft-standard-WSL2\n": {Kernel: "6.6.87.2-microsoft-standard-WSL2", Libraries: true},
		"6.1.0-39-amd64\n":                   nil,
	} {
		root := t.TempDir()
		for _, dir := range []string{"proc/sys/kernel", "usr/lib/wsl/lib"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(root, "proc/sys/kernel/osrelease"), []byte(kernel), 0o600); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, wslFacts(root)); diff != "" {
			t.Errorf("%s:\n%s", kernel, diff)
		}
	}
}
