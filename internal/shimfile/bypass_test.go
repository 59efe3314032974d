package shimfile

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

func TestRecordBypass(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	check := func(want string) {
		t.Helper()
		if reason, err := BypassReason(dir); reason != want || err != nil {
			t.Errorf("%q, %v, want %q", reason, err, want)
		}
		if err := CheckBypass(dir); errors.Is(err, ErrBypassed) != (want != "") || err != nil && !strings.HasSuffix(err.Error(), ": "+want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	check("")
	for reason, want := range map[string]string{"version 3": "version 3", "": "the reason is unknown"} {
		if err := RecordBypass(dir, reason); err != nil {
			t.Fatal(err)
		}
		check(want)
	}
	for range 2 {
		if err := ClearBypass(dir); err != nil {
			t.Error(err)
		}
		check("")
	}
}
