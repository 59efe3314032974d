package noderuntime

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/tomledit"
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
		err := test.failure.checkRetry("a", test.now)
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
	r := changeRecord{Format: recordFormat, Config: "/c", Edits: []tomledit.Edit{{Path: []string{"version"}, New: "2", Inserted: "version = 2\n"}}, Pending: 1, Failure: &failure{Attempt: "a"}}
	testutil.NoError(t, r.save(state))
	if got, err := readRecord(state); err != nil || !reflect.DeepEqual(got, r) || !isConfigured(state) {
		t.Errorf("%+v, %v", got, err)
	}
	c := recordedConfig{changeRecord: r}
	c.dropEdits(0)
	c.Failure = nil
	if err := c.save(state); err != nil || durable.Exists(state) || isConfigured(state) {
		t.Errorf("the record or the state directory is left: %v", err)
	}
	for text, want := range map[string]string{`{"format": 2}`: "unknown format 2", "{}": "unknown format 0", "null": "unknown format 0", "{": "read the record"} {
		testutil.NoError(t, os.MkdirAll(state, 0o700), os.WriteFile(recordPath(state), []byte(text), 0o600))
		if r, err := readRecord(state); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
	}
}
