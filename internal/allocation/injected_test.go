package allocation

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// inject writes a record without a token.
func inject(t *testing.T, r *Recorder, ids ...string) ID {
	t.Helper()
	var replicas []Replica
	for _, id := range ids {
		replicas = append(replicas, Replica{ID: id, InstanceID: `PCI\` + id})
	}
	token, err := r.Record(context.Background(), Record{Resource: display, Replicas: replicas, Injected: true})
	if err != nil {
		t.Fatal(err)
	}
	return token.ID()
}

// TestInjectedRecordEnds: injected records end without a holder, also after a restart.
func TestInjectedRecordEnds(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	r := openRecorder(t, dir)
	bound := record(t, r, "a::0")
	bind(t, dir, bound, "pod-a", "main")
	inject(t, r, "a::0")
	last := inject(t, r, "a::0")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got := live(t, openRecorder(t, dir)); !slices.Equal(got, []ID{last}) {
		t.Errorf("live %v, want %v", got, last)
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
	want := &Holder{PodUID: "name:team/web", Container: "main", PodNamespace: "team", PodName: "web"}
	if len(records) != 1 || !cmp.Equal(want, records[0].Holder) || records[0].BoundAt.IsZero() {
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
