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
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// lockName is the file that the recorder of a directory locks. It is never removed,
// because a removed file can be locked twice.
const lockName = ".lock"

// lockRetry is the interval of attempts to take a lock that another process has.
const lockRetry = 200 * time.Millisecond

// Recorder writes records and ends them. One process at a time has one; any
// number may read beside it with a [Store].
type Recorder struct {
	store *Store
	file  *flock.Flock // the directory's lock
	log   logrus.FieldLogger

	// newMu guards the following two. It is never held while files are used, so that
	// Record waits for no other call.
	newMu    sync.Mutex
	sequence uint64 // of the newest record
	// added are the records that are not in entries yet.
	added []Entry

	// mu guards entries. It is locked by lockEntries, and held while files are used.
	mu      sync.Mutex
	entries map[ID]*Entry // that have not ended
}

// OpenRecorder creates dir if necessary and reads the records in it. Records that
// cannot be read are logged and kept, and files with other names are ignored.
//
// While another process has the directory's recorder, as during an update, it waits:
// the order of records must be determined by one process.
func OpenRecorder(ctx context.Context, dir string, log logrus.FieldLogger) (*Recorder, error) {
	r := &Recorder{
		store: OpenStore(dir),
		// On a read-only file system the lock cannot be opened, and nothing be recorded.
		file:    flock.New(filepath.Join(dir, lockName), flock.SetPermissions(0o600), flock.SetFlag(os.O_CREATE|os.O_RDWR)),
		log:     log,
		entries: map[ID]*Entry{},
	}
	if err := r.open(ctx); err != nil {
		return nil, fmt.Errorf("open allocation records in %s: %w", dir, err)
	}
	if err := r.removeLeftovers(); err != nil {
		return nil, errors.Join(fmt.Errorf("open allocation records in %s: %w", dir, err), r.Close())
	}
	return r, nil
}

// open creates the directory if necessary, takes its lock and reads its records.
func (r *Recorder) open(ctx context.Context) error {
	if err := durable.MakePrivate(r.store.dir); err != nil {
		return err
	}
	locked, err := r.file.TryLock()
	if err == nil && !locked {
		r.log.WithField("lock", r.file.Path()).Warn("Another process writes the allocation records of this node; waiting until it ends")
		_, err = r.file.TryLockContext(ctx, lockRetry)
	}
	if err == nil {
		err = r.load(ctx)
	}
	if err != nil {
		return errors.Join(err, r.Close())
	}
	return nil
}

// Close releases the directory's lock. The records stay.
func (r *Recorder) Close() error { return r.file.Close() }

// ErrNotWritable means that no record can be written now.
var ErrNotWritable = errors.New("allocations cannot be recorded")

// CheckWritable returns [ErrNotWritable] on a file system that has become read-only. If
// the directory or its lock was removed, it opens the records again.
func (r *Recorder) CheckWritable(ctx context.Context) error {
	r.lockEntries()
	defer r.mu.Unlock()
	if !r.holdsLock() {
		if err := errors.Join(r.Close(), r.open(ctx)); err != nil {
			return fmt.Errorf("%w: %w", ErrNotWritable, err)
		}
		r.log.WithField("records", len(r.entries)).Error("The allocation records or their lock were removed; a container whose record is lost cannot start again: delete its pod")
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

// Record writes the record of an allocation, whose resource, replicas and Injected are given,
// and returns the token for its container. The record is on disk when it returns. It waits for
// nothing else, because another allocation in the meantime can crash the kubelet on Windows
// (kubernetes#136021): other calls do not delay it, and [Recorder.Live] removes the
// records of the same replicas that have ended.
//
// No container presents the token of an injected record. It ends when all of its
// replicas are in newer records, or [Recorder.BindByName] bound it and another pod's
// record is newer.
func (r *Recorder) Record(ctx context.Context, record Record) (Token, error) {
	token := NewToken()
	record.ID, record.Sequence, record.CreatedAt = token.ID(), r.nextSequence(), time.Now().UTC()
	data, err := encode(&record)
	err = cmp.Or(ctx.Err(), record.check(record.ID), err)
	if err == nil && len(data) > maxFileBytes {
		err = fmt.Errorf("%d replicas for one container do not fit into a record: request fewer", len(record.Replicas))
	}
	if err == nil {
		err = durable.Replace(r.store.path(record.ID, recordSuffix), data, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("record allocation of %s: %w", record.Resource, err)
	}
	r.newMu.Lock()
	defer r.newMu.Unlock()
	r.added = append(r.added, Entry{Record: record})
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

// lockEntries locks mu, and adds the records that were written since it was last locked.
func (r *Recorder) lockEntries() {
	r.mu.Lock()
	r.newMu.Lock()
	defer r.newMu.Unlock()
	for _, e := range r.added {
		if r.entries[e.ID] == nil { // CheckWritable may have found it in the directory.
			r.entries[e.ID] = &e
		}
	}
	r.added = nil
}

// BindByName binds an injected record to the container that the kubelet names as
// its holder. The kubelet names no UID, so the pod's name stands for it: a pod
// that is recreated under the same name counts as the same. Its errors are those
// of [Store.Bind].
func (r *Recorder) BindByName(id ID, namespace, pod, container string) error {
	r.lockEntries()
	defer r.mu.Unlock()
	e, ok := r.entries[id]
	if !ok || !e.Injected {
		return fmt.Errorf("attribute allocation %s: %w", id, ErrNotFound)
	}
	holder := Holder{PodUID: nameOnlyPrefix + namespace + "/" + pod, Container: container, PodNamespace: namespace, PodName: pod}
	if err := r.store.bind(id, holder); err != nil {
		return fmt.Errorf("attribute allocation %s: %w", id, err)
	}
	return nil
}

// End removes a record whose token no container will present again. It does nothing
// if the record has ended already.
func (r *Recorder) End(id ID) error {
	r.lockEntries()
	defer r.mu.Unlock()
	if err := r.end(id); err != nil {
		return fmt.Errorf("end allocation %s: %w", id, err)
	}
	return nil
}

// Live returns the records that have not ended, oldest first. It removes those that have; a
// failure is logged, and the next call tries again.
func (r *Recorder) Live() []Entry {
	r.lockEntries()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if err := r.store.readHolder(e); err != nil {
			r.log.WithError(err).WithField("allocation", e.ID).Warn("Cannot read the binding of an allocation; its record is kept")
		}
	}
	for _, id := range ended(r.sorted()) {
		if err := r.end(id); err != nil {
			r.log.WithError(err).WithField("allocation", id).Warn("Cannot remove an allocation record that has ended, retrying later")
		}
	}
	return r.sorted()
}

func (r *Recorder) sorted() []Entry {
	all := make([]Entry, 0, len(r.entries))
	for _, e := range r.entries {
		all = append(all, *e)
	}
	slices.SortFunc(all, oldestFirst)
	return all
}

// end removes the files of a record, before those of its binding: a record without a binding could
// be bound again, and a binding without a record grants nothing.
func (r *Recorder) end(id ID) error {
	for _, suffix := range []string{recordSuffix, bindingSuffix} {
		if err := os.Remove(r.store.path(id, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	delete(r.entries, id)
	return nil
}

func (r *Recorder) load(ctx context.Context) error {
	entries, problems, err := r.store.List(ctx)
	if err != nil {
		return err
	}
	for _, p := range problems {
		r.log.WithError(p.Err).Error("An allocation record cannot be used, and the container that holds it cannot start again: delete its pod, then remove the file")
	}
	clear(r.entries)
	r.newMu.Lock()
	defer r.newMu.Unlock()
	for _, e := range entries {
		r.entries[e.ID] = &e
		r.sequence = max(r.sequence, e.Sequence)
	}
	return nil
}

// removeLeftovers removes temporary files, and the bindings of records that have ended.
func (r *Recorder) removeLeftovers() error {
	files, err := os.ReadDir(r.store.dir)
	for _, file := range files {
		id, suffix, ok := splitName(file.Name())
		// No other process writes records, and one whose binding fails tries again.
		leftover := durable.IsTemp(file.Name())
		if ok && suffix == bindingSuffix {
			_, err := os.Lstat(r.store.path(id, recordSuffix))
			leftover = errors.Is(err, fs.ErrNotExist)
		}
		if leftover {
			if err := os.Remove(filepath.Join(r.store.dir, file.Name())); err != nil {
				r.log.WithError(err).Warn("Cannot remove a file of an earlier run")
			}
		}
	}
	return err
}
