//go:build unix

package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// Each open directory or file that decides what containers get is a problem. The kubelet accepts
// plugins from everyone who can write its directory.
func TestAccess(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		dir, file os.FileMode
		want      error
		problems  int
	}{
		"private":             {0o755, 0o644, nil, 0},
		"a directory is open": {0o777, 0o644, durable.ErrNotPrivate, 3},
		"a file is open":      {0o755, 0o666, durable.ErrUntrusted, 2},
	} {
		c := configState{Path: filepath.Join(t.TempDir(), "config.yaml")}
		c.Policy.Source.Inventory = filepath.Join(t.TempDir(), "gpus.yaml")
		n := gatherer{stateDir: "/nonexistent", kubeletDir: filepath.Dir(c.Path)}
		for _, path := range []string{c.Path, c.Policy.Source.Inventory} {
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, test.file), os.Chmod(filepath.Dir(path), test.dir)); err != nil {
				t.Fatal(err)
			}
		}
		problems := n.files(t.Context(), c)
		if len(problems) != test.problems || slices.ContainsFunc(problems, func(p fileProblem) bool { return p.kind != notPrivate || !errors.Is(p.err, test.want) }) {
			t.Errorf("%s: %v, want %v", name, problems, test.want)
		}
	}
}
