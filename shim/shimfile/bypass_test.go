package shimfile

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestRecordBypass(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	check := func(want string) {
		t.Helper()
		err := CheckBypass(dir)
		testutil.CheckError(t, "check", err, want)
		if err != nil && !errors.Is(err, ErrBypassed) {
			t.Errorf("error %v, want %v", err, ErrBypassed)
		}
	}
	check("")
	for reason, want := range map[string]string{"version 3": "version 3", "": "the reason is unknown"} {
		testutil.NoError(t, RecordBypass(dir, reason))
		check(want)
	}
	for range 2 {
		testutil.NoError(t, ClearBypass(dir))
		check("")
	}
}
