package bypass

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestRecord(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	check := func(want string) {
		t.Helper()
		err := Check(dir)
		testutil.CheckError(t, "check", err, want)
		if err != nil && !errors.Is(err, Err) {
			t.Errorf("error %v, want %v", err, Err)
		}
	}
	check("")
	for reason, want := range map[string]string{"version 3": "version 3", "": "the reason is unknown"} {
		testutil.NoError(t, Record(dir, reason))
		check(want)
	}
	for range 2 {
		testutil.NoError(t, Clear(dir))
		check("")
	}
}
