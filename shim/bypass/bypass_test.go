package bypass

import (
	"path/filepath"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestRecord(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	for _, reason := range []string{"", "version 3", "version 4", "", ""} {
		testutil.NoError(t, Record(dir, reason))
		testutil.CheckError(t, "check", Check(dir), reason)
	}
}
