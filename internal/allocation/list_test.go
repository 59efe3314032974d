package allocation

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestList(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	if entries, problems, err := OpenStore(dir).List(t.Context()); err != nil || len(entries)+len(problems) > 0 {
		t.Errorf("no directory: %v, %v, %v", entries, problems, err)
	}
	r := openRecorder(t, dir)
	store := OpenStore(dir)
	held, waiting := record(t, r, "gpu::0"), record(t, r, "gpu::1", "gpu::2")
	holder := Holder{PodUID: "uid", Container: "main", PodNamespace: "default", PodName: "a"}
	if err := store.Bind(held, holder); err != nil {
		t.Fatal(err)
	}
	got, problems, err := store.List(t.Context())
	if err != nil || len(problems) > 0 {
		t.Fatalf("%v, %v", problems, err)
	}
	want := []Entry{
		{Record: Record{ID: held.ID(), Resource: display, Replicas: []Replica{{ID: "gpu::0", InstanceID: `PCI\gpu::0`}}}, Holder: &holder},
		{Record: Record{ID: waiting.ID(), Resource: display, Replicas: []Replica{{ID: "gpu::1", InstanceID: `PCI\gpu::1`}, {ID: "gpu::2", InstanceID: `PCI\gpu::2`}}}},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreTypes(time.Time{}), cmpopts.IgnoreFields(Record{}, "Sequence")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := store.List(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if got[0].BoundAt.IsZero() || !got[1].BoundAt.IsZero() || got[0].CreatedAt.IsZero() {
		t.Errorf("bound at %v and %v", got[0].BoundAt, got[1].BoundAt)
	}
}

func TestListProblems(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	r := openRecorder(t, dir)
	good, torn, unclear := record(t, r, "gpu::0"), record(t, r, "gpu::1"), record(t, r, "gpu::2")
	bad := map[string]error{
		string(torn.ID()) + recordSuffix:     ErrUnreadable,
		string(unclear.ID()) + bindingSuffix: ErrUnreadable,
	}
	ignored := []string{string(NewToken().ID()) + bindingSuffix, string(good.ID()) + ".delivered", "README", ".directx-nri-tmp-1"}
	for _, name := range slices.AppendSeq(ignored, maps.Keys(bad)) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	store := OpenStore(dir)
	entries, problems, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []ID
	for _, e := range entries {
		ids = append(ids, e.ID)
		if e.Holder != nil || e.HolderUnknown != (e.ID == unclear.ID()) {
			t.Errorf("%s: holder %v, unknown %t", e.ID, e.Holder, e.HolderUnknown)
		}
	}
	if diff := cmp.Diff([]ID{good.ID(), unclear.ID()}, ids); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	for _, p := range problems {
		want := bad[filepath.Base(p.Path)]
		if want == nil || !errors.Is(p.Err, want) || !strings.Contains(p.Err.Error(), p.Path) {
			t.Errorf("%s: %v, want %v", p.Path, p.Err, want)
		}
		delete(bad, filepath.Base(p.Path))
	}
	if len(bad) > 0 {
		t.Errorf("no problem for %v", bad)
	}
}
