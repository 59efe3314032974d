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

	"directx-nri/internal/durable"
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
	lock  *flock.Flock
	log   logrus.FieldLogger

	mu       sync.Mutex
	sequence uint64
	// byReplica lists the records that have not ended by replica, oldest first.
	byReplica map[replicaKey][]*entry
	byID      map[ID]*entry
}

// lockRetry is the interval of attempts to take a lock that another process has.
const lockRetry = 200 * time.Millisecond

// replicaKey identifies a replica. The kubelet counts replicas by resource: one that
// moves to another resource is allocated independently in both.
type replicaKey struct{ resource, id string }

type entry struct {
	record Record
	// holder is nil as long as no binding was seen.
	holder *Holder
}

// OpenRecorder creates dir if necessary and reads the records in it. Records that
// cannot be read are logged and kept, and files with other names are ignored.
//
// While another process has the directory's recorder, as during an update, it waits:
// the order of records must be determined by one process.
func OpenRecorder(ctx context.Context, dir string, log logrus.FieldLogger) (*Recorder, error) {
	if err := durable.MakePrivate(dir); err != nil {
		return nil, fmt.Errorf("open allocation records: %w", err)
	}
	r := &Recorder{
		store:     OpenStore(dir),
		lock:      flock.New(filepath.Join(dir, lockName), flock.SetPermissions(0o600)),
		log:       log,
		byReplica: map[replicaKey][]*entry{},
		byID:      map[ID]*entry{},
	}
	if err := r.acquire(ctx); err != nil {
		return nil, fmt.Errorf("open allocation records in %s: %w", dir, err)
	}
	if err := r.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open allocation records in %s: %w", dir, err), r.Close())
	}
	return r, nil
}

// acquire takes the directory's lock, and waits for it if necessary.
func (r *Recorder) acquire(ctx context.Context) error {
	locked, err := r.lock.TryLock()
	if err != nil || locked {
		return err
	}
	r.log.WithField("lock", r.lock.Path()).Warn("Another process writes the allocation records of this node; waiting until it ends")
	_, err = r.lock.TryLockContext(ctx, lockRetry)
	return err
}

// Close releases the directory's lock. The records stay.
func (r *Recorder) Close() error { return r.lock.Close() }

// Record writes a record of the allocation of replicas to a container, and returns the
// token for the container. The record is on disk when it returns. Records of the same
// replicas that have ended are removed.
func (r *Recorder) Record(ctx context.Context, resource string, replicas []Replica) (Token, error) {
	return r.write(ctx, resource, replicas, false)
}

// RecordInjected is [Recorder.Record] for a container that gets its devices from the
// kubelet. Its token is for [Recorder.Discard] only: no container presents it. The
// record ends when all of its replicas are in newer records, or [Recorder.Attribute]
// bound it and another pod's record is newer.
func (r *Recorder) RecordInjected(ctx context.Context, resource string, replicas []Replica) (Token, error) {
	return r.write(ctx, resource, replicas, true)
}

func (r *Recorder) write(ctx context.Context, resource string, replicas []Replica, injected bool) (Token, error) {
	if resource == "" || len(replicas) == 0 {
		return "", errors.New("record allocation: no resource or no replica")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("record allocation of %s: %w", resource, err)
	}

	token := NewToken()
	// The clock leaves room for the number of a record that cannot be read now.
	r.sequence = max(r.sequence+1, uint64(time.Now().UnixNano()))
	record := Record{
		ID:        token.ID(),
		Sequence:  r.sequence,
		Resource:  resource,
		Replicas:  slices.Clone(replicas),
		CreatedAt: time.Now().UTC(),
		Injected:  injected,
	}
	data, err := encode(kindRecord, record)
	if err != nil {
		return "", fmt.Errorf("record allocation of %s: %w", resource, err)
	}
	if len(data) > maxFileBytes {
		return "", fmt.Errorf("record allocation of %s: %d replicas for one container do not fit into a record: request fewer", resource, len(replicas))
	}
	if err := durable.Replace(r.store.path(record.ID, recordSuffix), data, 0o600); err != nil {
		return "", fmt.Errorf("record allocation of %s: %w", resource, err)
	}
	r.add(&entry{record: record})
	for _, key := range replicaKeys(record) {
		r.endSuperseded(key)
	}
	return token, nil
}

// Discard removes a record whose token no container has.
func (r *Recorder) Discard(token Token) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.byID[token.ID()]
	if !ok {
		return fmt.Errorf("discard allocation %s: %w", token.ID(), ErrNotFound)
	}
	if err := r.end(e); err != nil {
		return fmt.Errorf("discard allocation %s: %w", token.ID(), err)
	}
	return nil
}

// End removes a record whose pod no longer exists. It does nothing if the record has
// ended already.
func (r *Recorder) End(id ID) error {
	r.mu.Lock()
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

// LiveRecord is a record that has not ended.
type LiveRecord struct {
	Record
	// Holder is the container that the record is bound to, nil if none has presented
	// its token yet, or the binding cannot be read.
	Holder *Holder
}

// Live returns the records that have not ended, oldest first.
func (r *Recorder) Live() []LiveRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.byReplica {
		r.endSuperseded(key)
	}
	records := make([]LiveRecord, 0, len(r.byID))
	for _, e := range r.byID {
		live := LiveRecord{Record: e.record}
		live.Replicas = slices.Clone(live.Replicas)
		if e.holder != nil {
			holder := *e.holder
			live.Holder = &holder
		}
		records = append(records, live)
	}
	slices.SortFunc(records, func(a, b LiveRecord) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return records
}

// endSuperseded removes the records of replica that have ended. A failure is logged,
// and the next call tries again.
func (r *Recorder) endSuperseded(replica replicaKey) {
	var known []*entry
	for _, e := range r.byReplica[replica] {
		if r.readHolder(e) {
			known = append(known, e)
		}
	}
	gone := ended(known)
	for _, e := range known {
		if r.handedOn(e) && !slices.Contains(gone, e) {
			gone = append(gone, e)
		}
	}
	for _, e := range gone {
		if err := r.end(e); err != nil {
			r.log.WithError(err).WithField("allocation", e.record.ID).Warn("Cannot remove an allocation record that has ended, retrying later")
		}
	}
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
func ended(entries []*entry) []*entry {
	var gone []*entry
	unbound := 0
	// newer are the holders of the newer records.
	var newer []Holder
	for _, e := range slices.Backward(entries) {
		if e.holder == nil {
			unbound++
			if len(newer) > 0 || unbound > maxUnbound {
				gone = append(gone, e)
			}
			continue
		}
		if slices.ContainsFunc(newer, func(n Holder) bool { return n.PodUID != e.holder.PodUID || n.Same(*e.holder) }) {
			gone = append(gone, e)
			continue
		}
		newer = append(newer, *e.holder)
	}
	return gone
}

// readHolder updates e's holder, and reports whether it is known. A record whose binding
// cannot be read is kept.
func (r *Recorder) readHolder(e *entry) (known bool) {
	if e.holder != nil {
		return true
	}
	holder, ok, err := r.store.holder(e.record.ID)
	if err != nil {
		r.log.WithError(err).WithField("allocation", e.record.ID).Warn("Cannot read the binding of an allocation; its record is kept")
		return false
	}
	if ok {
		e.holder = &holder
	}
	return true
}

func (r *Recorder) add(e *entry) {
	r.byID[e.record.ID] = e
	for _, key := range replicaKeys(e.record) {
		r.byReplica[key] = append(r.byReplica[key], e)
	}
}

// end removes e's files, the record before its binding: a record without a binding could
// be bound again, and a binding without a record grants nothing.
func (r *Recorder) end(e *entry) error {
	for _, suffix := range []string{recordSuffix, bindingSuffix} {
		if err := os.Remove(r.store.path(e.record.ID, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	delete(r.byID, e.record.ID)
	for _, key := range replicaKeys(e.record) {
		rest := slices.DeleteFunc(r.byReplica[key], func(other *entry) bool { return other == e })
		if len(rest) == 0 {
			delete(r.byReplica, key)
			continue
		}
		r.byReplica[key] = rest
	}
	return nil
}

// replicaKeys returns the replicas of record, each once.
func replicaKeys(record Record) []replicaKey {
	keys := make([]replicaKey, 0, len(record.Replicas))
	seen := make(map[replicaKey]bool, len(record.Replicas))
	for _, replica := range record.Replicas {
		key := replicaKey{record.Resource, replica.ID}
		if !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	return keys
}

func (r *Recorder) load() error {
	files, err := os.ReadDir(r.store.dir)
	if err != nil {
		return err
	}
	var entries []*entry
	var bindings []ID
	records := map[ID]bool{}
	for _, file := range files {
		name := file.Name()
		if durable.IsTemp(name) {
			// There is no other writer of records, and bindings are tried again.
			if err := os.Remove(filepath.Join(r.store.dir, name)); err != nil {
				r.log.WithError(err).Warn("Cannot remove an unfinished file of an earlier run")
			}
			continue
		}
		id, suffix, ok := splitName(name)
		if !ok {
			continue
		}
		if suffix == bindingSuffix {
			bindings = append(bindings, id)
			continue
		}
		records[id] = true
		record, err := r.store.get(id)
		if err != nil {
			r.log.WithError(err).Error("An allocation record cannot be used, and the container that holds it cannot start again: delete its pod, then remove the file")
			continue
		}
		entries = append(entries, &entry{record: record})
	}
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.record.Sequence, b.record.Sequence) })
	for _, e := range entries {
		r.add(e)
		r.sequence = max(r.sequence, e.record.Sequence)
	}
	for _, id := range bindings {
		if records[id] {
			continue
		}
		if err := os.Remove(r.store.path(id, bindingSuffix)); err != nil {
			r.log.WithError(err).Warn("Cannot remove the binding of an ended allocation")
		}
	}
	return nil
}

func splitName(name string) (id ID, suffix string, ok bool) {
	for _, suffix := range []string{recordSuffix, bindingSuffix} {
		if base, found := strings.CutSuffix(name, suffix); found && wellFormed(base) {
			return ID(base), suffix, true
		}
	}
	return "", "", false
}
