package allocation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// Entry is a record that has not ended, with its container.
type Entry struct {
	Record
	// Holder is the container that the record is bound to, nil if none has presented
	// its token yet, or the binding cannot be read.
	Holder *Holder
	// BoundAt is when the holder presented the token, zero without one.
	BoundAt time.Time
	// HolderUnknown reports that the record is bound and its binding cannot be
	// read. A [Problem] says why.
	HolderUnknown bool
}

// Problem is a record or binding that cannot be read. Err is one line that names the
// file.
type Problem struct {
	Path string
	Err  error
}

// List returns the records of the directory, oldest first, and the problems by path.
// It changes nothing, needs no token, and may be called while others write: a record
// that ends meanwhile may be listed or not. A directory that does not exist has no
// record, and files with other names are ignored.
//
// The error is one of the directory as a whole, such as [durable.ErrNotPrivate], and
// nothing is listed then.
func (s *Store) List(ctx context.Context) ([]Entry, []Problem, error) {
	err := durable.CheckPrivate(s.dir)
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
	var entries []Entry
	var problems []Problem
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return nil, nil, fmt.Errorf("list allocation records in %s: %w", s.dir, err)
		}
		id, suffix, ok := splitName(file.Name())
		if !ok || suffix != recordSuffix {
			continue
		}
		entry, problem, err := s.entry(id)
		if !errors.Is(err, ErrNotFound) && err != nil {
			problems = append(problems, Problem{s.path(id, problem), err})
		}
		if entry.ID != "" {
			entries = append(entries, entry)
		}
	}
	slices.SortFunc(entries, bySequence)
	return entries, problems, nil
}

// entry returns the record with the given ID, the zero Entry if it cannot be read, and
// the error of reading the record or its binding with that file's suffix.
func (s *Store) entry(id ID) (e Entry, suffix string, err error) {
	record, err := s.get(id)
	if err != nil {
		return Entry{}, recordSuffix, err
	}
	e.Record = record
	b, bound, err := s.binding(id)
	switch {
	case err != nil:
		e.HolderUnknown = true
		return e, bindingSuffix, err
	case bound:
		e.Holder, e.BoundAt = &b.Holder, b.BoundAt
		return e, "", nil
	}
	// A record that has ended meanwhile has lost its binding with it.
	if _, err := os.Lstat(s.path(id, recordSuffix)); errors.Is(err, fs.ErrNotExist) {
		return Entry{}, "", nil
	}
	return e, "", nil
}
