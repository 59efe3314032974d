package allocation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// maxUnbound is how many records of one replica may wait for their container. The
// oldest ends when there are more: pods that are admitted and never start would fill
// the disk otherwise. A pod's containers can share a replica, each with a record that is
// written at admission, so it must exceed the number of containers of any pod.
const maxUnbound = 64

// lockName is the file that the recorder of a directory locks. It is never removed,
// because a removed file can be locked twice.
const lockName = ".lock"

// Recorder writes records and ends them. One process at a time has one; any
// number may read beside it with a [Store].
type Recorder struct {
	store *Store
	file  *flock.Flock // the directory's lock
	log   logrus.FieldLogger

	// newMu guards sequence, the number of the newest record, and added, the records that
	// lock has not added yet. It is never held while files are used.
	newMu    sync.Mutex
	sequence uint64
	added    []*Entry

	// mu is taken with lock, and held while files are used.
	mu sync.Mutex
	// byReplica lists the records that have not ended by replica, oldest first.
	byReplica map[replicaKey][]*Entry
	byID      map[ID]*Entry
}

// lockRetry is the interval of attempts to take a lock that another process has.
const lockRetry = 200 * time.Millisecond

// replicaKey identifies a replica. The kubelet counts replicas by resource: one that
// moves to another resource is allocated independently in both.
type replicaKey struct{ resource, id string }

// OpenRecorder creates dir if necessary and reads the records in it. Records that
// cannot be read are logged and kept, and files with other names are ignored.
//
// While another process has the directory's recorder, as during an update, it waits:
// the order of records must be determined by one process.
func OpenRecorder(ctx context.Context, dir string, log logrus.FieldLogger) (*Recorder, error) {
	r := &Recorder{
		store: OpenStore(dir),
		// On a read-only file system the lock cannot be opened, and nothing be recorded.
		file:      flock.New(filepath.Join(dir, lockName), flock.SetPermissions(0o600), flock.SetFlag(os.O_CREATE|os.O_RDWR)),
		log:       log,
		byReplica: map[replicaKey][]*Entry{},
		byID:      map[ID]*Entry{},
	}
	if err := r.open(ctx); err != nil {
		return nil, fmt.Errorf("open allocation records in %s: %w", dir, err)
	}
	if err := r.clean(); err != nil {
		return nil, errors.Join(fmt.Errorf("open allocation records in %s: %w", dir, err), r.Close())
	}
	return r, nil
}

// open creates the directory if necessary, takes its lock and reads its records.
func (r *Recorder) open(ctx context.Context) error {
	if err := durable.MakePrivate(r.store.dir); err != nil {
		return err
	}
	if err := r.acquire(ctx); err != nil {
		return err
	}
	if err := r.load(ctx); err != nil {
		return errors.Join(err, r.Close())
	}
	return nil
}

// acquire takes the directory's lock, and waits for it if necessary.
func (r *Recorder) acquire(ctx context.Context) error {
	locked, err := r.file.TryLock()
	if err != nil || locked {
		return err
	}
	r.log.WithField("lock", r.file.Path()).Warn("Another process writes the allocation records of this node; waiting until it ends")
	_, err = r.file.TryLockContext(ctx, lockRetry)
	return err
}

// Close releases the directory's lock. The records stay.
func (r *Recorder) Close() error { return r.file.Close() }

// ErrNotWritable means that no record can be written now.
var ErrNotWritable = errors.New("allocations cannot be recorded")

// CheckWritable returns [ErrNotWritable] on a file system that has become read-only. If
// the directory or its lock was removed, it opens the records again.
func (r *Recorder) CheckWritable(ctx context.Context) error {
	r.lock()
	defer r.mu.Unlock()
	if !r.holdsLock() {
		if err := errors.Join(r.Close(), r.open(ctx)); err != nil {
			return fmt.Errorf("%w: %w", ErrNotWritable, err)
		}
		r.log.WithField("records", len(r.byID)).Error("The allocation records or their lock were removed; a container whose record is lost cannot start again: delete its pod")
	}
	f, err := os.OpenFile(r.file.Path(), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	return f.Close()
}

// holdsLock reports whether r has locked the file that is now in the directory.
func (r *Recorder) holdsLock() bool {
	locked, _ := r.file.Stat()
	now, _ := os.Stat(r.file.Path())
	return r.file.Locked() && os.SameFile(locked, now)
}

// Record writes a record of the allocation of replicas to a container, and returns the
// token for the container. The record is on disk when it returns. That is all that it
// waits for, as another allocation meanwhile can crash the kubelet on Windows
// (kubernetes#136021): other calls do not delay it, and [Recorder.Live] removes the
// records of the same replicas that have ended.
//
// No container presents the token of an injected record. It ends when all of its
// replicas are in newer records, or [Recorder.Attribute] bound it and another pod's
// record is newer.
func (r *Recorder) Record(ctx context.Context, resource string, replicas []Replica, injected bool) (Token, error) {
	if resource == "" || len(replicas) == 0 {
		return "", errors.New("record allocation: no resource or no replica")
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("record allocation of %s: %w", resource, err)
	}
	token := NewToken()
	record := Record{
		ID:        token.ID(),
		Sequence:  r.nextSequence(),
		Resource:  resource,
		Replicas:  slices.Clone(replicas),
		CreatedAt: time.Now().UTC(),
		Injected:  injected,
	}
	data, err := encode(&record)
	if err != nil {
		return "", fmt.Errorf("record allocation of %s: %w", resource, err)
	}
	if len(data) > maxFileBytes {
		return "", fmt.Errorf("record allocation of %s: %d replicas for one container do not fit into a record: request fewer", resource, len(replicas))
	}
	if err := durable.Replace(r.store.path(record.ID, recordSuffix), data, 0o600); err != nil {
		return "", fmt.Errorf("record allocation of %s: %w", resource, err)
	}
	r.newMu.Lock()
	defer r.newMu.Unlock()
	r.added = append(r.added, &Entry{Record: record})
	return token, nil
}

// nextSequence returns a number above those of all records.
func (r *Recorder) nextSequence() uint64 {
	r.newMu.Lock()
	defer r.newMu.Unlock()
	// The clock leaves room for the number of a record that cannot be read now.
	r.sequence = max(r.sequence+1, uint64(time.Now().UnixNano()))
	return r.sequence
}

// lock locks mu, and adds the records that were written since it was last locked.
func (r *Recorder) lock() {
	r.mu.Lock()
	r.newMu.Lock()
	defer r.newMu.Unlock()
	for _, e := range r.added {
		r.add(e)
	}
	r.added = nil
}

// Attribute binds an injected record to the container that the kubelet names as
// its holder. The kubelet names no UID, so the pod's name stands for it: a pod
// that is recreated under the same name counts as the same. Its errors are those
// of [Store.Bind].
func (r *Recorder) Attribute(id ID, namespace, pod, container string) error {
	r.lock()
	defer r.mu.Unlock()
	e, ok := r.byID[id]
	if !ok || !e.Injected {
		return fmt.Errorf("attribute allocation %s: %w", id, ErrNotFound)
	}
	holder := Holder{PodUID: nameOnlyPrefix + namespace + "/" + pod, Container: container, PodNamespace: namespace, PodName: pod}
	if err := r.store.bind(id, holder); err != nil {
		return fmt.Errorf("attribute allocation %s: %w", id, err)
	}
	e.Holder = &holder
	return nil
}

// End removes a record whose token no container will present any more. It does nothing
// if the record has ended already.
func (r *Recorder) End(id ID) error {
	r.lock()
	defer r.mu.Unlock()
	e, ok := r.byID[id]
	if !ok {
		return nil
	}
	if err := r.end(e); err != nil {
		return fmt.Errorf("end allocation %s: %w", id, err)
	}
	return nil
}

// Live returns the records that have not ended, oldest first.
func (r *Recorder) Live() []Entry {
	r.lock()
	defer r.mu.Unlock()
	for key := range r.byReplica {
		r.endSuperseded(key)
	}
	entries := make([]Entry, 0, len(r.byID))
	for _, e := range r.byID {
		entries = append(entries, *e)
	}
	slices.SortFunc(entries, bySequence)
	return entries
}

func bySequence(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.ID, b.ID))
}

// endSuperseded removes the records of replica that have ended. A failure is logged,
// and the next call tries again.
func (r *Recorder) endSuperseded(replica replicaKey) {
	var known []*Entry
	for _, e := range r.byReplica[replica] {
		if r.readHolder(e) {
			known = append(known, e)
		}
	}
	gone := ended(known)
	for _, e := range known {
		if !r.handedOn(e) && !slices.Contains(gone, e) {
			continue
		}
		if err := r.end(e); err != nil {
			r.log.WithError(err).WithField("allocation", e.ID).Warn("Cannot remove an allocation record that has ended, retrying later")
		}
	}
}

// handedOn reports whether each of e's replicas is in a later injected record. Some are
// not enough: a main container may have a part of its init container's replicas.
func (r *Recorder) handedOn(e *Entry) bool {
	for _, key := range replicaKeys(e.Record) {
		if !slices.ContainsFunc(r.byReplica[key], func(later *Entry) bool { return later.Injected && later.Sequence > e.Sequence }) {
			return false
		}
	}
	return true
}

// ended returns those of one replica's records, oldest first, whose tokens no container
// will present any more.
//
// The kubelet allocates a replica again to a later container of the same pod (the
// replicas of init containers), and when the pod no longer exists. So a newer record
// proves nothing, but its holder does: if that is a container of another pod, the older
// record's pod no longer exists; if it is the same container, the kubelet has forgotten
// the older record (a recreated static pod keeps its UID). A pod's containers present
// their tokens in the order of admission, so a record that is unbound when a newer one
// is bound has ended too.
func ended(entries []*Entry) []*Entry {
	var gone []*Entry
	unbound := 0
	// newer are the holders of the newer records.
	var newer []Holder
	for _, e := range slices.Backward(entries) {
		if e.Holder == nil {
			unbound++
			if len(newer) > 0 || unbound > maxUnbound {
				gone = append(gone, e)
			}
			continue
		}
		if slices.ContainsFunc(newer, func(n Holder) bool { return n.PodUID != e.Holder.PodUID || n.Same(*e.Holder) }) {
			gone = append(gone, e)
			continue
		}
		newer = append(newer, *e.Holder)
	}
	return gone
}

// readHolder updates e's holder, and reports whether it is known. A record whose binding
// cannot be read is kept.
func (r *Recorder) readHolder(e *Entry) (known bool) {
	if e.Holder != nil {
		return true
	}
	b, ok, err := r.store.binding(e.ID)
	if err != nil {
		r.log.WithError(err).WithField("allocation", e.ID).Warn("Cannot read the binding of an allocation; its record is kept")
		return false
	}
	if ok {
		e.Holder, e.BoundAt = &b.Holder, b.BoundAt
	}
	return true
}

// add adds e, unless it was found in the directory already.
func (r *Recorder) add(e *Entry) {
	if r.byID[e.ID] != nil {
		return
	}
	r.byID[e.ID] = e
	for _, key := range replicaKeys(e.Record) {
		if !slices.Contains(r.byReplica[key], e) {
			r.byReplica[key] = append(r.byReplica[key], e)
			slices.SortFunc(r.byReplica[key], func(a, b *Entry) int { return bySequence(*a, *b) })
		}
	}
}

// end removes e's files, the record before its binding: a record without a binding could
// be bound again, and a binding without a record grants nothing.
func (r *Recorder) end(e *Entry) error {
	for _, suffix := range []string{recordSuffix, bindingSuffix} {
		if err := os.Remove(r.store.path(e.ID, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	delete(r.byID, e.ID)
	for _, key := range replicaKeys(e.Record) {
		r.byReplica[key] = slices.DeleteFunc(r.byReplica[key], func(other *Entry) bool { return other == e })
		if len(r.byReplica[key]) == 0 {
			delete(r.byReplica, key)
		}
	}
	return nil
}

func replicaKeys(record Record) []replicaKey {
	keys := make([]replicaKey, 0, len(record.Replicas))
	for _, replica := range record.Replicas {
		keys = append(keys, replicaKey{record.Resource, replica.ID})
	}
	return keys
}

// load reads the records.
func (r *Recorder) load(ctx context.Context) error {
	entries, problems, err := r.store.List(ctx)
	if err != nil {
		return err
	}
	clear(r.byReplica)
	clear(r.byID)
	for _, p := range problems {
		r.log.WithError(p.Err).Error("An allocation record cannot be used, and the container that holds it cannot start again: delete its pod, then remove the file")
	}
	for _, e := range entries {
		r.add(&e)
		r.newMu.Lock()
		r.sequence = max(r.sequence, e.Sequence)
		r.newMu.Unlock()
	}
	return nil
}

// clean removes what an earlier run has left.
func (r *Recorder) clean() error {
	files, err := os.ReadDir(r.store.dir)
	for _, file := range files {
		id, suffix, ok := splitName(file.Name())
		// There is no other writer of records, and bindings are tried again.
		left := durable.IsTemp(file.Name())
		if ok && suffix == bindingSuffix {
			_, err := os.Lstat(r.store.path(id, recordSuffix))
			left = errors.Is(err, fs.ErrNotExist) // of an allocation that has ended
		}
		if left {
			if err := os.Remove(filepath.Join(r.store.dir, file.Name())); err != nil {
				r.log.WithError(err).Warn("Cannot remove a file of an earlier run")
			}
		}
	}
	return err
}

func splitName(name string) (id ID, suffix string, ok bool) {
	for _, suffix := range []string{recordSuffix, bindingSuffix} {
		if base, found := strings.CutSuffix(name, suffix); found && wellFormed(base) {
			return ID(base), suffix, true
		}
	}
	return "", "", false
}
