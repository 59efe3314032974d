package allocation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

const (
	// lockName is the file that the recorder of a directory locks. It is never removed,
	// because a removed file can be locked twice.
	lockName  = ".lock"
	probeName = ".directx-nri-tmp-probe" // a file that shows whether files can be written
	// lockRetryInterval is the interval of attempts to take a lock that another process has.
	lockRetryInterval = 200 * time.Millisecond
	// lockTimeout is the time after which the attempts end.
	lockTimeout = 5 * time.Second
	// slowWrite is how long a record can take to be written while others can be expected to be written, too.
	slowWrite = 3 * time.Second
)

// Recorder writes records and ends them. One process at a time has a recorder for a directory. Any
// number of processes can read the records at the same time with a [Store].
type Recorder struct {
	store        *Store
	log          logrus.FieldLogger
	lock         *flock.Flock  // of the directory
	lastSequence atomic.Uint64 // at least the number of each record
	failedBytes  atomic.Int64  // the size of the last record that could not be written, 0 if there is none
	writingSince atomic.Int64  // when the writing of a record has begun, in Unix nanoseconds, 0 while none is written

	// mu guards the following fields. It is held while files are read, so Record and End, which
	// Allocate calls, do not lock it.
	mu sync.Mutex
	// records are the records that had not ended when the directory was last read, oldest first.
	records []Entry
	// lastListErr is why the directory could not be read, lastRecordErr why some of its records
	// could not be read.
	lastListErr, lastRecordErr errlog.LastError
}

// OpenRecorder creates dir if necessary and reads the records in it. Records that
// cannot be read are logged and kept, and files with other names are ignored.
//
// One process must determine the order of the records. OpenRecorder waits some seconds while another
// process has the directory's recorder, as during an update, and then returns an error.
func OpenRecorder(ctx context.Context, dir string, log logrus.FieldLogger) (*Recorder, error) {
	r := &Recorder{
		store: OpenStore(dir), log: log,
		// Opening the lock fails on a read-only file system, on which nothing can be recorded.
		lock: flock.New(filepath.Join(dir, lockName), flock.SetPermissions(0o600), flock.SetFlag(os.O_CREATE|os.O_RDWR)),
	}
	if err := r.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open allocation records in %s: %w", dir, err), r.Close())
	}
	return r, nil
}

func (r *Recorder) open(ctx context.Context) error {
	if err := access.MakePrivate(r.store.dir); err != nil {
		return err
	}
	lockCtx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	_, err := r.lock.TryLockContext(lockCtx, lockRetryInterval)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("another process writes them (%w); does directx-advertiser run twice on this node?", err)
	}
	if err != nil {
		return err
	}
	if err := r.readRecords(ctx); err != nil {
		return err
	}
	// A record that cannot be read has no number above the current time, unless the clock was set back.
	last := uint64(time.Now().UnixNano())
	if n := len(r.records); n > 0 {
		last = max(last, r.records[n-1].Sequence)
	}
	r.lastSequence.Store(last)
	if err := r.removeLeftovers(); err != nil {
		r.log.WithError(err).Warn("Cannot remove files of an earlier run")
	}
	return nil
}

// Close releases the directory's lock. The records stay.
func (r *Recorder) Close() error { return r.lock.Close() }

// ErrRemoved means that the directory of the records or its lock was removed: another recorder must be opened.
var ErrRemoved = errors.New("the allocation records or their lock were removed; a container whose record is lost cannot start again: delete its pod")

// CheckWritable returns an error if no record can be written now. It opens the lock for writing,
// which fails on a read-only file system. After a record could not be written, as on a full file
// system, it also writes a file of the record's size. The error can match [ErrRemoved].
func (r *Recorder) CheckWritable() error {
	if err := r.checkResponds(); err != nil {
		return err
	}
	f, err := os.OpenFile(r.lock.Path(), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrRemoved
	}
	if err == nil {
		locked, lockedErr := r.lock.Stat()
		now, nowErr := f.Stat()
		if err = errors.Join(lockedErr, nowErr, f.Close()); err == nil && !os.SameFile(locked, now) {
			return ErrRemoved
		}
	}
	if size := r.failedBytes.Load(); err == nil && size > 0 {
		probe := filepath.Join(r.store.dir, probeName)
		err = errors.Join(durable.Replace(probe, make([]byte, size), 0o600), durable.Remove(probe))
	}
	if err != nil {
		return fmt.Errorf("allocations cannot be recorded: %w", err)
	}
	r.failedBytes.Store(0)
	return nil
}

// checkResponds returns an error while the writing of a record hangs.
func (r *Recorder) checkResponds() error {
	if since := r.writingSince.Load(); since > 0 && time.Since(time.Unix(0, since)) > slowWrite {
		return errors.New("allocations cannot be recorded: the disk does not respond")
	}
	return nil
}

// Record writes the record of an allocation, and returns the ID for its container. The caller
// sets Resource and Replicas. The record is on disk when Record returns. Other calls must not
// delay it, because an allocation that begins meanwhile can crash the kubelet on Windows
// (kubernetes#136021). So [Recorder.Refresh], and not Record, removes the records that have ended. While another call
// hangs, Record returns an error at once.
func (r *Recorder) Record(ctx context.Context, record Record) (ID, error) {
	if err := cmp.Or(ctx.Err(), r.checkResponds()); err != nil {
		return "", fmt.Errorf("record allocation of %s: %w", record.Resource, err)
	}
	record.ID, record.Sequence, record.CreatedAt = NewID(), r.lastSequence.Add(1), time.Now().UTC()
	data, err := json.Marshal(record)
	if err == nil {
		r.writingSince.Store(record.CreatedAt.UnixNano())
		err = durable.Replace(r.store.path(record.ID, recordSuffix), data, 0o600)
		r.writingSince.Store(0)
	}
	if err != nil { // The file exists if its directory could not be synced.
		r.failedBytes.Store(int64(len(data)))
		return "", fmt.Errorf("record allocation of %s: %w", record.Resource, errors.Join(err, r.End(record.ID)))
	}
	return record.ID, nil
}

// End removes a record whose ID no container will present again. It does nothing
// if the record has ended already.
func (r *Recorder) End(id ID) error {
	// A record without its binding could be bound again; a binding without its record grants nothing.
	for _, suffix := range []string{recordSuffix, bindingSuffix} {
		if err := durable.Remove(r.store.path(id, suffix)); err != nil {
			return fmt.Errorf("end allocation %s: %w", id, err)
		}
	}
	return nil
}

// Refresh returns the records that have not ended, oldest first, and removes those that have. If the
// directory cannot be read, it returns the records that it read last. A failure is logged, and the
// next call tries again.
func (r *Recorder) Refresh() []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastListErr.Log(r.log, r.readRecords(context.Background()),
		"Cannot list the allocation records; the last known ones stay in force", "The allocation records can be listed again")
	for id := range ended(r.records) {
		if err := r.End(id); err != nil {
			r.log.WithError(err).Warn("Cannot remove an allocation record that has ended, retrying later")
			continue
		}
		r.records = slices.DeleteFunc(r.records, func(e Entry) bool { return e.ID == id })
	}
	return slices.Clone(r.records)
}

func (r *Recorder) readRecords(ctx context.Context) error {
	records, problems, err := r.store.List(ctx)
	if err != nil {
		return err
	}
	r.lastRecordErr.Log(r.log, errors.Join(problems...), "Allocation records cannot be used, and the containers that hold them cannot start again: delete their pods, then remove the files",
		"All allocation records can be used again")
	r.records = records
	return nil
}

// removeLeftovers removes old temporary files, and the bindings of records that have ended.
func (r *Recorder) removeLeftovers() error {
	err := durable.RemoveTemps(r.store.dir)
	files, readErr := os.ReadDir(r.store.dir)
	for _, file := range files {
		id, isBinding := strings.CutSuffix(file.Name(), bindingSuffix)
		if isBinding && isWellFormed(id) && !durable.Exists(r.store.path(ID(id), recordSuffix)) {
			err = errors.Join(err, durable.Remove(r.store.path(ID(id), bindingSuffix)))
		}
	}
	return errors.Join(err, readErr)
}
