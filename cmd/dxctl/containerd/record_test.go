package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/durable"
)

func TestFailure(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		name    string
		failure *failure
		now     time.Time
		refuses bool
	}{
		{"none", nil, now, false},
		{"at once", &failure{"a", now, "no"}, now, true},
		{"a little later", &failure{"a", now, "no"}, now.Add(retryPause - time.Second), true},
		{"an hour later", &failure{"a", now, "no"}, now.Add(retryPause), false},
		{"the clock is set back", &failure{"a", now, "no"}, now.Add(-time.Second), false},
		{"another attempt", &failure{"b", now, "no"}, now, false},
	} {
		err := test.failure.check("a", test.now)
		if (err != nil) != test.refuses {
			t.Errorf("%s: %v", test.name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "2026-01-02T03:04:05Z: no; it is tried again after 1h0m0s") {
			t.Errorf("%s: incomplete: %v", test.name, err)
		}
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	change := func(r *record) { r.Change, r.Failure = &Change{Config: "/c", Written: "w"}, &failure{Attempt: "a"} }
	if err := updateRecord(state, change); err != nil {
		t.Fatal(err)
	}
	r, err := readRecord(state)
	if err != nil || r.Config != "/c" || r.Failure == nil || r.Restart != nil || !IsConfigured(state) {
		t.Errorf("%+v, %v", r, err)
	}
	err = errors.Join(ForgetFailure(state), updateRecord(state, func(r *record) { r.Change = nil }))
	if err != nil || durable.Exists(state) || IsConfigured(state) {
		t.Errorf("the record or the state directory is left: %v", err)
	}
	// The form without the restart and the failure, which had files of their own.
	const old = `{"format": 1, "config": "/c", "original": "o", "written": "w", "edits": [{"path": ["version"], "new": "2"}]}`
	for text, want := range map[string]string{old: "", `{"format": 2}`: "unknown format 2", "{": "read the record"} {
		if err := errors.Join(os.MkdirAll(state, 0o700), os.WriteFile(recordPath(state), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		r, err := readRecord(state)
		if want == "" && (err != nil || r.Change == nil || r.Original != "o" || len(r.Edits) != 1) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
	}
}
