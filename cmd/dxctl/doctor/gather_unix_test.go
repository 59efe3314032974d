//go:build unix

package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// TestAccess: doctor finds each open directory or file that the compiler refuses.
func TestAccess(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		dir, file os.FileMode
		want      error
	}{
		"private":             {0o755, 0o644, nil},
		"a directory is open": {0o777, 0o644, durable.ErrNotPrivate},
		"a file is open":      {0o755, 0o666, durable.ErrUntrusted},
	} {
		c := configState{Path: filepath.Join(t.TempDir(), "config.yaml")}
		c.Policy.Source.Inventory = filepath.Join(t.TempDir(), "gpus.yaml")
		n := gatherer{stateDir: "/nonexistent"}
		for _, path := range []string{c.Path, c.Policy.Source.Inventory} {
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, test.file), os.Chmod(filepath.Dir(path), test.dir)); err != nil {
				t.Fatal(err)
			}
		}
		problems := n.files(t.Context(), c)
		if test.want == nil && len(problems) > 0 || test.want != nil && (len(problems) != 2 || !errors.Is(problems[0].err, test.want) || !errors.Is(problems[1].err, test.want)) {
			t.Errorf("%s: %v, want %v", name, problems, test.want)
		}
	}
}
