package allocation

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const display = "directx.microsoft.com/display"

func openRecorder(t testing.TB, dir string) *Recorder {
	t.Helper()
	r, err := OpenRecorder(context.Background(), dir, testutil.Quiet())
	testutil.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func record(t testing.TB, r *Recorder, ids ...string) ID {
	t.Helper()
	record := Record{Resource: display}
	for _, id := range ids {
		record.Replicas = append(record.Replicas, Replica{ID: id, InstanceID: `PCI\` + id})
	}
	id, err := r.Record(t.Context(), record)
	testutil.NoError(t, err)
	return id
}

func bind(t testing.TB, dir string, id ID, pod, container string) {
	t.Helper()
	store, holder := OpenStore(dir), Holder{PodUID: pod, Container: container}
	entry, err := store.GetFor(id, holder)
	testutil.NoError(t, err)
	testutil.NoError(t, store.Bind(entry, holder))
}

func recordIDs(t testing.TB, r *Recorder) []ID {
	t.Helper()
	var ids []ID
	for _, r := range r.Refresh() {
		ids = append(ids, r.ID)
	}
	return ids
}

func TestParseID(t *testing.T) {
	t.Parallel()
	id := NewID()
	if parsed, err := ParseID(string(id)); err != nil || parsed != id || id == NewID() {
		t.Fatalf("ParseID(%q) = %q, %v", id, parsed, err)
	}
	for _, bad := range []string{
		"", "0", strings.Repeat("A", 32), strings.Repeat("a", 31), strings.Repeat("a", 33),
		"../../../../../../etc/passwd\x00\x00\x00\x00", strings.Repeat("a", 31) + "/", strings.Repeat("é", 16),
	} {
		if _, err := ParseID(bad); !errors.Is(err, ErrMalformedID) {
			t.Errorf("ParseID(%q): error %v, want ErrMalformedID", bad, err)
		}
	}
}

func TestAnnotationKey(t *testing.T) {
	t.Parallel()
	for resource, want := range map[string]string{
		"directx.microsoft.com/display": "directx.microsoft.com/allocation.display",
		"directx.microsoft.com/compute": "directx.microsoft.com/allocation.compute",
		"microsoft.com/directx":         "directx.microsoft.com/allocation.microsoft.com.directx",
		"az.com/A-Z_09":                 "directx.microsoft.com/allocation.az.com.A.Z.09",
	} {
		if got := AnnotationKey(resource); got != want {
			t.Errorf("%s: %q, want %q", resource, got, want)
		}
	}
}

// TestInterlockMountCannotBeCreated: crun creates names in a volume that a pod mounts at /proc.
func TestInterlockMountCannotBeCreated(t *testing.T) {
	t.Parallel()
	if err := os.WriteFile(filepath.Join(t.TempDir(), filepath.Base(InterlockMount)), nil, 0o600); err == nil {
		t.Error("a file of that name can be created")
	}
}

func TestBind(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	id := record(t, openRecorder(t, dir), "gpu-0", "gpu-1")
	store := OpenStore(dir)

	first := Holder{PodUID: "uid-1", Container: "main", PodName: "a", PodNamespace: "default"}
	unbound, err := store.GetFor(id, Holder{PodUID: "other", Container: "main"})
	testutil.NoError(t, err)
	var got Entry
	for range 2 { // as after a restart of the container
		got, err = store.GetFor(id, first)
		testutil.NoError(t, err)
		testutil.NoError(t, store.Bind(got, first))
		want := []Replica{{ID: "gpu-0", InstanceID: `PCI\gpu-0`}, {ID: "gpu-1", InstanceID: `PCI\gpu-1`}}
		if diff := cmp.Diff(want, got.Replicas); diff != "" || got.Resource != display {
			t.Errorf("record of %s (-want +got):\n%s", got.Resource, diff)
		}
	}
	for _, other := range []Holder{
		{PodUID: "uid-2", Container: "main"},
		{PodUID: "uid-1", Container: "sidecar"},
	} {
		if _, err := store.GetFor(id, other); !errors.Is(err, ErrHeld) {
			t.Errorf("get for %s: error %v, want %v", other, err, ErrHeld)
		}
		err := store.Bind(unbound, other) // It was read before another process bound it.
		testutil.CheckError(t, "bind", err, "default/a")
		if !errors.Is(err, ErrHeld) {
			t.Errorf("bind to %s: error %v, want %v", other, err, ErrHeld)
		}
	}
	testutil.NoError(t, store.Bind(unbound, first)) // bound in the meantime by the same container
	if _, err := store.GetFor(NewID(), first); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown ID: error %v, want ErrNotFound", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 3 {
		t.Errorf("files %v, %v; want the record, its binding and the lock", files, err)
	}
	for _, file := range files {
		if info, err := file.Info(); err != nil || runtime.GOOS != "windows" && info.Mode() != 0o600 {
			t.Errorf("the mode of %s is not 0600: %v, %v", file.Name(), info, err)
		}
	}
	// The recorder ends a record before its binding.
	testutil.NoError(t, os.Remove(store.path(id, recordSuffix)))
	for _, entry := range []Entry{got, unbound} {
		if err := store.Bind(entry, first); !errors.Is(err, ErrNotFound) {
			t.Errorf("ended in the meantime: error %v, want ErrNotFound", err)
		}
	}
}

func TestDirectoryMustBePrivate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	id := record(t, openRecorder(t, dir), "gpu-0")
	testutil.NoError(t, os.Chmod(dir, 0o777))
	_, err := OpenStore(dir).readRecord(id)
	if !errors.Is(err, access.ErrUntrusted) || errors.Is(err, ErrUnreadable) {
		t.Errorf("error %v, want ErrUntrusted alone", err)
	}
	if entries, _, err := OpenStore(dir).List(t.Context()); !errors.Is(err, access.ErrUntrusted) || entries != nil {
		t.Errorf("List: %v, %v", entries, err)
	}
}

func TestWhichRecordsHaveEnded(t *testing.T) {
	t.Parallel()
	many := slices.Repeat([]string{""}, 3*maxUnbound)
	var oldest []int
	for i := range 2 * maxUnbound {
		oldest = append(oldest, i+1)
	}
	// A record is "[REPLICAS ]HOLDER", the oldest first. HOLDER is POD/CONTAINER, or "" if it
	// is not bound; the replica is 0 by default. want are the indexes of the records that have ended.
	for name, test := range map[string]struct {
		records []string
		want    []int
	}{
		"nothing":                                  {nil, nil},
		"one waiting":                              {[]string{""}, nil},
		"one held":                                 {[]string{"a/main"}, nil},
		"newer one waits":                          {[]string{"a/main", ""}, nil},
		"another pod holds it":                     {[]string{"a/main", "b/main"}, []int{0}},
		"init and main container":                  {[]string{"a/init", "a/main"}, nil},
		"init runs, main waits":                    {[]string{"a/init", ""}, nil},
		"init containers of the next pod":          {[]string{"a/init", "a/main", "b/init", ""}, []int{0, 1}},
		"pod that never started":                   {[]string{"", "b/main"}, []int{0}},
		"pod that never started, next one waits":   {[]string{"a/main", "", ""}, nil},
		"recreated static pod":                     {[]string{"a/main", "a/main"}, []int{0}},
		"recreated static pod with init container": {[]string{"a/init", "a/main", "a/init", "a/main"}, []int{0, 1}},
		"recreated static pod, only its init ran":  {[]string{"a/init", "a/main", "a/init", ""}, []int{0}},
		"one of two replicas":                      {[]string{"0+1 a/main", "1 b/main"}, []int{0}},
		"many that wait":                           {append([]string{"a/main"}, many...), oldest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var records []Entry
			for i, text := range test.records {
				replicas, holder, ok := strings.Cut(text, " ")
				if !ok {
					replicas, holder = "0", text
				}
				e := Entry{Record: Record{ID: ID(strconv.Itoa(i)), Sequence: uint64(i)}}
				for id := range strings.SplitSeq(replicas, "+") {
					e.Replicas = append(e.Replicas, Replica{ID: id})
				}
				if pod, container, ok := strings.Cut(holder, "/"); ok {
					e.Holder = &Holder{PodUID: pod, Container: container}
				}
				records = append(records, e)
			}
			var got []int
			for id := range ended(records) {
				i, _ := strconv.Atoi(string(id))
				got = append(got, i)
			}
			slices.Sort(got)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("ended (-want +got):\n%s", diff)
			}
		})
	}
	// The kubelet allocates the replicas of each resource independently.
	both := []Entry{
		{Record: Record{ID: "0", Resource: display, Replicas: []Replica{{ID: "0"}}}, Holder: &Holder{PodUID: "a"}},
		{Record: Record{ID: "1", Resource: "x/y", Replicas: []Replica{{ID: "0"}}, Sequence: 1}, Holder: &Holder{PodUID: "b"}},
	}
	if got := ended(both); len(got) > 0 {
		t.Errorf("ended by a record of another resource: %v", got)
	}
}

// TestRecorderWaitsForLock starts a new process before the old one has ended, as an update does.
func TestRecorderWaitsForLock(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	first := openRecorder(t, dir)
	opened := make(chan *Recorder)
	var group sync.WaitGroup
	group.Go(func() { opened <- openRecorder(t, dir) })
	var old ID
	for range 5 {
		old = record(t, first, "gpu-0")
	}
	bind(t, dir, old, "pod-a", "main")
	select {
	case <-opened:
		t.Error("a second recorder was opened beside the first")
	case <-time.After(2 * lockRetryInterval):
	}
	testutil.NoError(t, first.Close())
	second := <-opened
	group.Wait()
	next := record(t, second, "gpu-0")
	bind(t, dir, next, "pod-b", "main")
	testutil.NoError(t, second.Close())
	if diff := cmp.Diff([]ID{next}, recordIDs(t, openRecorder(t, dir))); diff != "" {
		t.Errorf("records after a third has read them (-want +got):\n%s", diff)
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := OpenRecorder(ctx, dir, testutil.Quiet()); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "run twice") {
		t.Errorf("a wait that takes too long: error %v", err)
	}
}

func TestCheckWritable(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	r := openRecorder(t, dir)
	testutil.NoError(t, r.CheckWritable())
	// A record that cannot be written, and then a directory in which nothing can.
	probe := filepath.Join(dir, probeName)
	testutil.NoError(t, os.Rename(dir, dir+"2"))
	_, err := r.Record(t.Context(), Record{Resource: display, Replicas: []Replica{{ID: "gpu-0", InstanceID: "gpu"}}})
	testutil.CheckError(t, "record", err, dir)
	testutil.NoError(t, os.Rename(dir+"2", dir), os.MkdirAll(filepath.Join(probe, "x"), 0o700))
	testutil.CheckError(t, "no file can be written", r.CheckWritable(), probe)
	testutil.NoError(t, os.RemoveAll(probe), r.CheckWritable(), os.MkdirAll(filepath.Join(probe, "x"), 0o700), r.CheckWritable())

	r.writingSince.Store(time.Now().Add(-2 * slowWrite).UnixNano())
	_, err = r.Record(t.Context(), Record{Resource: display})
	for _, err := range []error{r.CheckWritable(), err} {
		testutil.CheckError(t, "while a write hangs", err, "does not respond")
	}
	r.writingSince.Store(0)

	testutil.NoError(t, os.Remove(filepath.Join(dir, lockName)))
	if err := r.CheckWritable(); !errors.Is(err, ErrRemoved) {
		t.Errorf("without its lock: %v", err)
	}
	openRecorder(t, dir)
	if err := r.CheckWritable(); !errors.Is(err, ErrRemoved) {
		t.Errorf("with the lock of another recorder: %v", err)
	}
}

// TestEndOrder: a binding stays while its record cannot be removed, because an unbound record is for any container.
func TestEndOrder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	r := openRecorder(t, dir)
	id := record(t, r, "gpu-0")
	bind(t, dir, id, "pod-a", "main")
	path := r.store.path(id, recordSuffix)
	testutil.NoError(t, os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700))
	testutil.CheckError(t, "end", r.End(id), path)
	if !durable.Exists(r.store.path(id, bindingSuffix)) {
		t.Error("the binding is gone")
	}
	testutil.NoError(t, os.RemoveAll(path), r.End(id))
	if durable.Exists(r.store.path(id, bindingSuffix)) {
		t.Error("the binding is left")
	}
}

// TestLeftovers: a new recorder removes old temporary files, and bindings without a record, and keeps the others,
// such as the temporary file of a binding that the shim or the plugin writes now.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	before := openRecorder(t, dir)
	id := record(t, before, "gpu-0")
	testutil.NoError(t, before.Close())
	torn := string(NewID()) + recordSuffix
	const old, inFlight = ".directx-nri-tmp-1", ".directx-nri-tmp-2"
	for _, name := range []string{torn, "README", old, inFlight, string(NewID()) + bindingSuffix} {
		testutil.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	hourAgo := time.Now().Add(-time.Hour)
	testutil.NoError(t, os.Chtimes(filepath.Join(dir, old), hourAgo, hourAgo))
	if diff := cmp.Diff([]ID{id}, recordIDs(t, openRecorder(t, dir))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	var names []string
	files, err := os.ReadDir(dir)
	testutil.NoError(t, err)
	for _, file := range files {
		names = append(names, file.Name())
	}
	want := []string{lockName, string(id) + recordSuffix, torn, "README", inFlight}
	slices.Sort(want)
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestReadFiles: only a whole file of the allocation is accepted. Records must stay readable for later
// versions, and those of later versions for this one.
func TestReadFiles(t *testing.T) {
	t.Parallel()
	const (
		id       = ID("abababababababababababababababab")
		resource = `"resource":"directx.microsoft.com/display"`
		whole    = `{"id":"abababababababababababababababab","sequence":1,` + resource + `,"replicas":[{"id":"gpu-0","instanceID":"gpu"}],"createdAt":"2026-01-02T03:04:05Z"}`
		bound    = `{"id":"abababababababababababababababab","holder":{"podUID":"u","container":"c"},"boundAt":"2026-01-02T03:04:05Z"}`
	)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	wantRecord := Record{ID: id, Sequence: 1, Resource: display, Replicas: []Replica{{ID: "gpu-0", InstanceID: "gpu"}}, CreatedAt: at}
	wantEntry := Entry{Record: wantRecord, Holder: &Holder{PodUID: "u", Container: "c"}, BoundAt: at}
	dir := filepath.Join(t.TempDir(), "records")
	openRecorder(t, dir)
	store := OpenStore(dir)
	for name, test := range map[string]struct {
		record, binding string
		ok              bool
	}{
		"whole":              {whole, bound, true},
		"of a later version": {`{"new":1,` + whole[1:], `{"new":1,` + bound[1:], true},
		"torn":               {whole[:len(whole)-1], bound[:len(bound)-1], false},
		"of another ID":      {strings.Replace(whole, "abab", "cdcd", 1), strings.Replace(bound, "abab", "cdcd", 1), false},
		"two":                {whole + "{}", bound + "{}", false},
		"empty":              {"", "", false},
		"null":               {"null", "null", false},
		"incomplete":         {strings.Replace(whole, resource, `"resource":""`, 1), "{}", false},
	} {
		testutil.NoError(t, os.WriteFile(store.path(id, recordSuffix), []byte(test.record), 0o600), os.WriteFile(store.path(id, bindingSuffix), []byte(test.binding), 0o600))
		record, err := store.readRecord(id)
		if ok := err == nil && cmp.Equal(record, wantRecord); ok != test.ok || !ok && !errors.Is(err, ErrUnreadable) {
			t.Errorf("record %s: %+v, %v", name, record, err)
		}
		testutil.NoError(t, os.WriteFile(store.path(id, recordSuffix), []byte(whole), 0o600))
		entry, err := store.readEntry(id)
		if ok := err == nil && cmp.Equal(entry, wantEntry); ok != test.ok || !ok && !errors.Is(err, ErrUnreadable) {
			t.Errorf("binding %s: %+v, %v", name, entry, err)
		}
	}
}

// TestClockSetBack: a new record is newer than one from before the clock was set back.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	last := NewID()
	data, err := json.Marshal(Record{ID: last, Sequence: 1 << 63, Resource: display, Replicas: []Replica{{ID: "gpu-0", InstanceID: "gpu"}}})
	testutil.NoError(t, err, os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, string(last)+recordSuffix), data, 0o600))
	r := openRecorder(t, dir)
	if diff := cmp.Diff([]ID{last, record(t, r, "gpu-0")}, recordIDs(t, r)); diff != "" {
		t.Errorf("records, oldest first (-want +got):\n%s", diff)
	}
}

// TestRecordsFollowTheDirectory: a record whose file is lost has ended. All stay known while the directory
// cannot be read.
func TestRecordsFollowTheDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	log, logged := logtest.NewNullLogger()
	r, err := OpenRecorder(t.Context(), dir, log)
	testutil.NoError(t, err)
	defer r.Close()
	lost, kept := record(t, r, "a-0"), record(t, r, "c-0")
	check := func(want ...ID) {
		t.Helper()
		for range 2 {
			if diff := cmp.Diff(want, recordIDs(t, r)); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		}
	}
	check(lost, kept)
	testutil.NoError(t, os.Remove(r.store.path(lost, recordSuffix)))
	check(kept)
	testutil.NoError(t, os.Chmod(dir, 0o777))
	check(kept)
	if entries := logged.AllEntries(); len(entries) != 1 || !strings.Contains(entries[0].Message, "the last known ones stay in force") {
		t.Errorf("logged %v", entries)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "records")
	store := OpenStore(dir)
	if entries, problems, err := store.List(t.Context()); err != nil || len(entries)+len(problems) > 0 {
		t.Errorf("no directory: %v, %v, %v", entries, problems, err)
	}
	r := openRecorder(t, dir)
	held, waiting, unclear, torn := record(t, r, "gpu-0"), record(t, r, "gpu-1", "gpu-2"), record(t, r, "gpu-3"), record(t, r, "gpu-4")
	holder := Holder{PodUID: "uid", Container: "main"}
	bind(t, dir, held, holder.PodUID, holder.Container)
	bad := []string{store.path(unclear, bindingSuffix), store.path(torn, recordSuffix)}
	ignored := []string{store.path(NewID(), bindingSuffix), store.path(held, ".delivered"), filepath.Join(dir, "README"), filepath.Join(dir, ".directx-nri-tmp-1")}
	for _, path := range slices.Concat(ignored, bad) {
		testutil.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	}
	got, problems, err := store.List(t.Context())
	testutil.NoError(t, err)
	want := []Entry{
		{Record: Record{ID: held, Resource: display, Replicas: []Replica{{ID: "gpu-0", InstanceID: `PCI\gpu-0`}}}, Holder: &holder},
		{Record: Record{ID: waiting, Resource: display, Replicas: []Replica{{ID: "gpu-1", InstanceID: `PCI\gpu-1`}, {ID: "gpu-2", InstanceID: `PCI\gpu-2`}}}},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreTypes(time.Time{}), cmpopts.IgnoreFields(Record{}, "Sequence")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got[0].BoundAt.IsZero() || !got[1].BoundAt.IsZero() || got[0].CreatedAt.IsZero() {
		t.Errorf("bound at %v and %v", got[0].BoundAt, got[1].BoundAt)
	}
	for i, err := range problems {
		if !errors.Is(err, ErrUnreadable) || !slices.ContainsFunc(bad, func(path string) bool { return strings.Contains(err.Error(), path) }) {
			t.Errorf("problem %d: %v", i, err)
		}
	}
	if len(problems) != len(bad) {
		t.Errorf("problems %v, want %v", problems, bad)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := store.List(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if _, err := r.Record(ended, Record{Resource: display}); !errors.Is(err, context.Canceled) {
		t.Errorf("record with an ended context: %v", err)
	}
}
