package preview

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"directx-nri/internal/allocation"
	"directx-nri/internal/testutil"
)

// What we may not read, the shim may: it is no refusal.
func TestAskOfWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	n, token, _ := node(t)
	dir := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(dir, 0); err != nil {
		t.Fatal(err)
	}
	n.Store = allocation.OpenStore(dir)
	testutil.EnforceModes(t)
	for name, q := range map[string]Question{
		"a token that is named":     {Spec: spec("p", nil), Token: token},
		"a token that is presented": {Spec: spec("p", nil, "DIRECTX_ALLOCATION_COMPUTE="+string(token))},
	} {
		if a, err := Ask(t.Context(), q, n); !errors.Is(err, fs.ErrPermission) || a.Refused != nil {
			t.Errorf("%s: refused %v, error %v", name, a.Refused, err)
		}
	}
}
