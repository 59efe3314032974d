package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAttempt(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := attempt{filepath.Join(t.TempDir(), "state"), "a"}
	if err := a.check(now); err != nil {
		t.Fatal(err)
	}
	if err := a.failed(now, os.ErrClosed); err != os.ErrClosed { //nolint:errorlint // The same value.
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
		err := attempt{a.state, test.id}.check(test.now)
		if (err != nil) != test.refuses {
			t.Errorf("%s: %v", test.name, err)
		}
		if err != nil && (!strings.Contains(err.Error(), os.ErrClosed.Error()) || !strings.Contains(err.Error(), "2026-01-02T03:04:05Z") || !strings.Contains(err.Error(), a.path())) {
			t.Errorf("%s: incomplete: %v", test.name, err)
		}
	}
	if last, exists, err := a.last(); !exists || err != nil || !last.At.Equal(now) || last.Error != os.ErrClosed.Error() {
		t.Errorf("%+v, %t, %v", last, exists, err)
	}
	if err := os.WriteFile(a.path(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.check(now); err != nil {
		t.Errorf("a damaged record: %v", err)
	}
	if err := forgetAttempts(a.state); err != nil {
		t.Fatal(err)
	}
	if exists(a.state) {
		t.Error("the state directory is left")
	}
	if err := forgetAttempts(a.state); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func TestIsBetween(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, test := range []struct {
		name      string
		at, after time.Duration
		want      bool
	}{
		{"changed before it was started", -2 * time.Hour, -time.Hour, false},
		{"changed since it was started", -time.Hour, -2 * time.Hour, true},
		{"the clock was set back since", time.Hour, -2 * time.Hour, false},
	} {
		if got := isBetween(now.Add(test.at), now.Add(test.after), now); got != test.want {
			t.Errorf("%s: %t", test.name, got)
		}
	}
}
