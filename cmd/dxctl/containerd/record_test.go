package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/cmd/dxctl/statefile"
	"github.com/directx-nri/directx-nri/internal/durable"
)

func TestAttempt(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	state := filepath.Join(t.TempDir(), "state")
	path := attemptPath(state)
	if err := errors.Join(checkAttempt(state, "a", now), statefile.Write(path, failedAttempt{"a", now, "no"})); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name    string
		id      string
		now     time.Time
		refuses bool
	}{
		{"at once", "a", now, true},
		{"a little later", "a", now.Add(attemptPause - time.Second), true},
		{"an hour later", "a", now.Add(attemptPause), false},
		{"the clock is set back", "a", now.Add(-time.Second), false},
		{"another attempt", "b", now, false},
	} {
		err := checkAttempt(state, test.id, test.now)
		if (err != nil) != test.refuses {
			t.Errorf("%s: %v", test.name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "2026-01-02T03:04:05Z: no; it is tried again after 1h0m0s, or when "+path) {
			t.Errorf("%s: incomplete: %v", test.name, err)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkAttempt(state, "a", now); err != nil {
		t.Errorf("a damaged record: %v", err)
	}
	if err := errors.Join(statefile.Remove(path), statefile.Remove(path)); err != nil || durable.Exists(state) {
		t.Errorf("the record or the state directory is left: %v", err)
	}
}
