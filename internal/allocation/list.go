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
	"time"

	"directx-nri/internal/durable"
)

// Entry is a record that has not ended, with what is known of its container.
type Entry struct {
	Record
	// Holder is the container that the record is bound to, nil when none has
	// presented its token yet, or when that cannot be told.
	Holder *Holder
	// BoundAt is when the holder presented the token, zero without one.
	BoundAt time.Time
	// HolderUnknown reports that the record is bound and its binding cannot be
	// read. A [Problem] says why.
	HolderUnknown bool
}

// Problem is a file among the records that is of no use, and why. Err is one
// line that names the file.
type Problem struct {
	Path string
	Err  error
}

// Errors of a [Problem], beside those of reading.
var (
	// ErrForeign: the file is not one of ours.
	ErrForeign = errors.New("it is not one of the allocation records")
	// ErrOrphan: the record that the file belongs to is not there.
	ErrOrphan = errors.New("it belongs to no allocation record")
)

// A record that ends is removed before what belongs to it, so a file without its
// record is given time to go away. On a busy disk a removal takes long.
const (
	orphanPatience = time.Second
	orphanPause    = 10 * time.Millisecond
)

// List returns the records of the directory, oldest first, and which of its files
// are of no use, by name. It changes nothing, needs no token, and may be called
// while others write: a record that ends meanwhile may be listed or not. A
// directory that does not exist has no record. It takes a second longer when a file
// belongs to no record, to be sure of it.
//
// The error is one of the directory as a whole, such as [durable.ErrNotPrivate],
// and nothing is listed then.
func (s *Store) List(ctx context.Context) ([]Entry, []Problem, error) {
	names, err := s.names()
	if err != nil || len(names) == 0 {
		return nil, nil, err
	}
	var l listing
	attached := map[ID][]string{}
	records := map[ID]bool{}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, nil, fmt.Errorf("list allocation records in %s: %w", s.dir, err)
		}
		id, suffix, ok := splitName(name)
		path := filepath.Join(s.dir, name)
		switch {
		case name == lockName, durable.IsTemp(name):
		case !ok:
			l.problem(path, fmt.Errorf("%s: %w; move it away", path, ErrForeign))
		case suffix == recordSuffix:
			records[id] = true
			l.add(s, id)
		default:
			attached[id] = append(attached[id], path)
		}
	}
	for id := range records {
		delete(attached, id)
	}
	orphans, err := s.orphans(ctx, attached)
	if err != nil {
		return nil, nil, fmt.Errorf("list allocation records in %s: %w", s.dir, err)
	}
	for _, path := range orphans {
		l.problem(path, fmt.Errorf("%s: %w; it is removed when directx-advertiser starts again", path, ErrOrphan))
	}
	slices.SortFunc(l.entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.ID, b.ID))
	})
	slices.SortStableFunc(l.problems, func(a, b Problem) int { return cmp.Compare(a.Path, b.Path) })
	return l.entries, l.problems, nil
}

// names returns the names of the directory's files.
func (s *Store) names() ([]string, error) {
	err := durable.CheckPrivate(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var files []fs.DirEntry
	if err == nil {
		files, err = os.ReadDir(s.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("list allocation records: %w", err)
	}
	names := make([]string, len(files))
	for i, file := range files {
		names[i] = file.Name()
	}
	return names, nil
}

// listing collects what [Store.List] finds.
type listing struct {
	entries  []Entry
	problems []Problem
}

func (l *listing) problem(path string, err error) {
	l.problems = append(l.problems, Problem{path, err})
}

// add reads the record with the given ID and what belongs to it.
func (l *listing) add(s *Store, id ID) {
	record, err := s.get(id)
	switch {
	case errors.Is(err, ErrNotFound):
		return // It has ended meanwhile.
	case err != nil:
		l.problem(s.path(id, recordSuffix), err)
		return
	}
	entry := Entry{Record: record}
	b, bound, err := s.binding(id)
	switch {
	case err != nil:
		entry.HolderUnknown = true
		l.problem(s.path(id, bindingSuffix), err)
	case bound:
		entry.Holder, entry.BoundAt = &b.Holder, b.BoundAt
	case !there(s.path(id, recordSuffix)):
		return // Its binding went with it.
	}
	l.entries = append(l.entries, entry)
}

// orphans returns those of the files, by the ID of the record that they belong
// to, whose record is not there and that stay.
func (s *Store) orphans(ctx context.Context, attached map[ID][]string) ([]string, error) {
	ticker := time.NewTicker(orphanPause)
	defer ticker.Stop()
	for deadline := time.Now().Add(s.orphanPatience); ; {
		left := s.withoutRecord(attached)
		if len(left) == 0 || time.Now().After(deadline) {
			return left, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C:
		}
	}
}

func (s *Store) withoutRecord(attached map[ID][]string) []string {
	var left []string
	for id, paths := range attached {
		// A record that was created after the directory was read exists by now.
		if there(s.path(id, recordSuffix)) {
			continue
		}
		for _, path := range paths {
			if there(path) {
				left = append(left, path)
			}
		}
	}
	return left
}

// there reports whether a file exists at path, or that is not known.
func there(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
