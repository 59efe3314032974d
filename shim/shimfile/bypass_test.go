package shimfile

import (
	"path/filepath"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestBypass(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	for _, reason := range []string{"", "version 3", "version 4", "", ""} {
		testutil.NoError(t, RecordBypass(dir, reason))
		testutil.CheckError(t, "check", CheckBypass(dir), reason)
	}
}
