//go:build unix

package preview

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"directx-nri/internal/allocation"
)

// What we may not read, the shim may: it is no refusal.
func TestAskOfWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	n, token, _ := node(t)
	folder := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(folder, 0); err != nil {
		t.Fatal(err)
	}
	n.Store = allocation.OpenStore(folder)
	for name, q := range map[string]Question{
		"a token that is named":     {Spec: spec("p", nil), Token: token},
		"a token that is presented": {Spec: spec("p", nil, "DIRECTX_ALLOCATION_COMPUTE="+string(token))},
	} {
		if a, err := Ask(t.Context(), q, n); !errors.Is(err, fs.ErrPermission) || a.Refused != nil {
			t.Errorf("%s: refused %v, error %v", name, a.Refused, err)
		}
	}
}
