package allocation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/directx-nri/directx-nri/internal/durable"
)

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
		id, suffix, _ := splitName(file.Name())
		if suffix != recordSuffix {
			continue
		}
		record, err := s.record(id)
		if err == nil {
			entry := Entry{Record: record}
			suffix, err = bindingSuffix, s.readHolder(&entry)
			// A record that has ended meanwhile has lost its binding with it.
			if _, ended := os.Lstat(s.path(id, recordSuffix)); !errors.Is(ended, fs.ErrNotExist) {
				entries = append(entries, entry)
			}
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			problems = append(problems, Problem{s.path(id, suffix), err})
		}
	}
	slices.SortFunc(entries, oldestFirst)
	return entries, problems, nil
}
