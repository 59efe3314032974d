package allocation

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
)

// inject writes a record without a token.
func inject(t *testing.T, r *Recorder, ids ...string) ID {
	t.Helper()
	var replicas []Replica
	for _, id := range ids {
		replicas = append(replicas, Replica{ID: id, InstanceID: `PCI\` + id})
	}
	token, err := r.Record(context.Background(), display, replicas, true)
	if err != nil {
		t.Fatal(err)
	}
	return token.ID()
}

func TestInjectedRecordEnds(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	r := openRecorder(t, dir)
	initial := inject(t, r, "a::0", "b::0")
	taken := inject(t, r, "a::0")
	if got := live(t, r); !slices.Equal(got, []ID{initial, taken}) {
		t.Fatalf("%v live; the init container still has b::0", got)
	}
	rest := inject(t, r, "b::0")
	if got := live(t, r); !slices.Equal(got, []ID{taken, rest}) {
		t.Fatalf("%v live, want %v", got, []ID{taken, rest})
	}
	// The number of records does not grow.
	for range 3 * maxUnbound {
		inject(t, r, "a::0")
	}
	if got := live(t, r); len(got) != 2 {
		t.Errorf("%d records are kept", len(got))
	}
	// A restart changes nothing.
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if again := live(t, openRecorder(t, dir)); len(again) != 2 {
		t.Errorf("%d records after a restart", len(again))
	}
}

func TestInjectedRecordEndsOtherRecords(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	r := openRecorder(t, dir)
	bound := record(t, r, "a::0")
	bind(t, dir, bound, "pod-a", "main")
	record(t, r, "b::0")
	want := []ID{inject(t, r, "a::0"), inject(t, r, "b::0")}
	if got := live(t, r); !slices.Equal(got, want) {
		t.Errorf("live %v, want %v", got, want)
	}
}

func TestAttribute(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	r := openRecorder(t, dir)
	id := inject(t, r, "a::0")
	for range 2 {
		if err := r.Attribute(id, "team", "web", "main"); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Attribute(id, "team", "other", "main"); !errors.Is(err, ErrHeld) {
		t.Errorf("another pod: %v", err)
	}
	records := r.Live()
	if len(records) != 1 || records[0].Holder == nil || records[0].Holder.PodName != "web" || records[0].Holder.Container != "main" {
		t.Fatalf("%+v", records)
	}
	withToken := record(t, r, "b::0")
	for _, other := range []ID{withToken.ID(), "none"} {
		if err := r.Attribute(other, "team", "web", "main"); !errors.Is(err, ErrNotFound) {
			t.Errorf("a record with a token, or none, was bound by a name: %v", err)
		}
	}
	// The replica is in another pod's later record.
	later := inject(t, r, "a::0")
	if got := live(t, r); !slices.Equal(got, []ID{withToken.ID(), later}) {
		t.Errorf("live %v", got)
	}
}
