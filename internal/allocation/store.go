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
	"time"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
)

// Errors of [Store].
var (
	// ErrNotFound means that there is no record with the ID.
	ErrNotFound = errors.New("no allocation is recorded with this ID")
	// ErrHeld means that the record belongs to another container.
	ErrHeld = errors.New("the allocation belongs to another container")
	// ErrUnreadable means that the record or its binding is not valid JSON, or has another
	// allocation's content.
	ErrUnreadable = errors.New("the allocation's record cannot be used")
)

const (
	recordSuffix  = ".json"
	bindingSuffix = ".bound"

	// maxFileBytes is enough for a container with all replicas of 64 GPUs × 1024, with
	// instance IDs of 200 characters.
	maxFileBytes = 32 << 20
)

// binding is the content of a binding file.
type binding struct {
	ID      ID        `json:"id"`
	Holder  Holder    `json:"holder"`
	BoundAt time.Time `json:"boundAt"`
}

// Store reads the records of a directory and binds them. Any number of processes
// may do so at once, beside the one [Recorder] that writes and ends them.
type Store struct{ dir string }

// OpenStore returns the store in dir, which need not exist yet.
func OpenStore(dir string) *Store { return &Store{dir} }

func (s *Store) readRecord(id ID) (r Record, err error) {
	path := s.path(id, recordSuffix)
	if err := s.readFile(path, &r); err != nil {
		return Record{}, err
	}
	if r.ID != id || r.Resource == "" || len(r.Replicas) == 0 {
		return Record{}, fmt.Errorf("%w: %s is of another allocation, or incomplete", ErrUnreadable, path)
	}
	return r, nil
}

// readEntry returns a record with its binding.
func (s *Store) readEntry(id ID) (Entry, error) {
	record, err := s.readRecord(id)
	if err != nil {
		return Entry{}, err
	}
	var b binding
	path := s.path(id, bindingSuffix)
	if err := s.readFile(path, &b); errors.Is(err, ErrNotFound) {
		return Entry{Record: record}, s.checkExists(id)
	} else if err != nil {
		return Entry{}, err
	}
	if b.ID != id {
		return Entry{}, fmt.Errorf("%w: %s is of another allocation", ErrUnreadable, path)
	}
	return Entry{Record: record, Holder: &b.Holder, BoundAt: b.BoundAt}, nil
}

// checkExists returns an error if the recorder has ended the record since it was read.
func (s *Store) checkExists(id ID) error {
	if path := s.path(id, recordSuffix); !durable.Exists(path) {
		return fmt.Errorf("%w (%s)", ErrNotFound, path)
	}
	return nil
}

// GetFor returns the record with an ID. If it is bound to another container than holder,
// the error matches [ErrHeld]. Otherwise an error names the file. It matches [ErrNotFound],
// [ErrUnreadable] or [access.ErrUntrusted], or is an error of the file system.
func (s *Store) GetFor(id ID, holder Holder) (Entry, error) {
	entry, err := s.readEntry(id)
	if err == nil && entry.Holder != nil && !entry.Holder.Same(holder) {
		err = fmt.Errorf("%w: %s", ErrHeld, entry.Holder)
	}
	return entry, err
}

// Bind binds the record that [Store.GetFor] returned for holder, unless it is bound already. Its errors are
// those of GetFor.
func (s *Store) Bind(entry Entry, holder Holder) error {
	if entry.Holder == nil {
		data, _ := json.Marshal(binding{ID: entry.ID, Holder: holder, BoundAt: time.Now().UTC()})
		err := durable.Create(s.path(entry.ID, bindingSuffix), data, 0o600)
		if errors.Is(err, fs.ErrExist) { // Another process has bound the record in the meantime.
			_, err = s.GetFor(entry.ID, holder)
		}
		if err != nil {
			return err
		}
	}
	return s.checkExists(entry.ID)
}

func (s *Store) path(id ID, suffix string) string {
	return filepath.Join(s.dir, string(id)+suffix)
}

// readFile decodes a file of an allocation. It reads nothing if other accounts can
// write to the directory. The error matches [ErrNotFound] if there is no file. Unknown fields are
// ignored: a newer version can have written them.
func (s *Store) readFile(path string, into any) error {
	var data []byte
	err := access.CheckPrivate(s.dir)
	if err == nil {
		data, err = durable.Read(path, maxFileBytes)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w (%s)", ErrNotFound, path)
	}
	if err != nil {
		return fmt.Errorf("read allocation record: %w", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnreadable, path, err)
	}
	return nil
}

// List returns the records of the directory, oldest first, and an error for each record that cannot be read with its
// binding: one line that names the file. It changes nothing, and may be called while other processes write: a record
// that ends in the meantime may be listed or not. A directory that does not exist has no records, and files with
// other names are ignored.
//
// An error, such as [access.ErrUntrusted], is about the whole directory, and nothing is listed then.
func (s *Store) List(ctx context.Context) (entries []Entry, problems []error, err error) {
	err = access.CheckPrivate(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	var files []fs.DirEntry
	if err == nil {
		files, err = os.ReadDir(s.dir)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list allocation records: %w", err)
	}
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return nil, nil, fmt.Errorf("list allocation records in %s: %w", s.dir, err)
		}
		id, isRecord := strings.CutSuffix(file.Name(), recordSuffix)
		if !isRecord || !isWellFormed(id) {
			continue
		}
		entry, err := s.readEntry(ID(id))
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		entries = append(entries, entry)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.ID, b.ID)) })
	return entries, problems, nil
}
