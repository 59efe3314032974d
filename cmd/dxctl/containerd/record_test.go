package containerd

import (
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/tomledit"
)

// TestTransitions has the record on disk after each step.
func TestTransitions(t *testing.T) {
	t.Parallel()
	type state struct {
		loaded, pending int
		due, failed     bool
	}
	dir := filepath.Join(t.TempDir(), "state")
	add := func(text, key string) func(*ChangeRecord) {
		edits := []tomledit.Edit{{Path: []string{key}, New: "1", Inserted: key + " = 1\n"}}
		return func(r *ChangeRecord) { r.AddEdits(ConfigFile{Path: "/c", Text: []byte(text)}, edits) }
	}
	for _, step := range []struct {
		name string
		do   func(*ChangeRecord)
		want state
	}{
		{"edits are added", add("", "a"), state{0, 1, false, false}},
		{"a restart begins", (*ChangeRecord).BeginRestart, state{0, 1, true, false}},
		{"the restart fails", func(r *ChangeRecord) { r.FailRestart("", errors.New("no")) }, state{0, 1, true, true}},
		{"the edits are undone", (*ChangeRecord).RemovePending, state{0, 0, true, false}},
		{"edits are added again", add("", "a"), state{0, 1, true, false}},
		{"containerd has loaded them", (*ChangeRecord).ConfirmLoaded, state{1, 0, true, false}},
		{"more are added", add("a = 1\n", "b"), state{1, 1, true, false}},
		{"only these are undone", (*ChangeRecord).RemovePending, state{1, 0, true, false}},
		{"the file was replaced", add("", "b"), state{0, 1, true, false}},
		{"another restart fails", func(r *ChangeRecord) { r.FailRestart("", errors.New("no")) }, state{0, 1, true, true}},
		{"a restart ends", (*ChangeRecord).EndRestart, state{1, 0, false, false}},
		{"all are undone", (*ChangeRecord).RemoveEdits, state{}},
	} {
		r, err := ReadRecord(dir)
		step.do(&r)
		testutil.NoError(t, err, r.Save(dir))
		r, err = ReadRecord(dir)
		testutil.NoError(t, err)
		if got := (state{len(r.Edits) - r.Pending, r.Pending, r.RestartDue, r.Failure != nil}); got != step.want {
			t.Errorf("%s: %+v, want %+v", step.name, got, step.want)
		}
		if configured := IsConfigured(dir); configured != durable.Exists(dir) {
			t.Errorf("%s: configured: %t", step.name, configured)
		}
	}
	if durable.Exists(dir) {
		t.Error("the record or the state directory is left")
	}
}

func TestFailure(t *testing.T) {
	t.Parallel()
	var r ChangeRecord
	testutil.NoError(t, r.Failure.CheckRetry("a", time.Now()))
	r.FailRestart("a", errors.New("no"))
	r.Failure.At = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const refused = "2026-01-02T03:04:05Z: no; it is tried again after 1h0m0s"
	for past, want := range map[time.Duration]string{0: refused, retryPause - time.Second: refused, retryPause: "", -time.Second: ""} {
		testutil.CheckError(t, past.String(), r.Failure.CheckRetry("a", r.Failure.At.Add(past)), want)
	}
	testutil.NoError(t, r.Failure.CheckRetry("another", r.Failure.At))
}

func TestReadRecord(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	for text, want := range map[string]string{
		`{"format":1,"config":"/c","given":"/link","created":true,"edits":[{"path":["a"]}],"pending":1,"restartDue":true,"failure":{"attempt":"a","error":"no"}}`: "",
		`{"format": 2}`: "unknown format 2", "{}": "unknown format 0", "null": "unknown format 0", "{": "read the state file",
	} {
		testutil.WriteFile(t, RecordPath(state), text, 0o600)
		r, err := ReadRecord(state)
		complete := ChangeRecord{1, "/c", "/link", true, []tomledit.Edit{{Path: []string{"a"}}}, 1, true, &RestartError{Attempt: "a", Cause: "no"}}
		testutil.CheckError(t, text, err, want)
		if want == "" && !reflect.DeepEqual(r, complete) {
			t.Errorf("%s: %+v", text, r)
		}
	}
}
