package allocation

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"directx-nri/internal/durable"
)

const (
	recordSuffix  = ".json"
	bindingSuffix = ".bound"
)

// Errors that a caller decides by.
var (
	// ErrNotFound: there is no record for the token.
	ErrNotFound = errors.New("no allocation is recorded for this token")
	// ErrHeld: the record belongs to another container.
	ErrHeld = errors.New("the allocation belongs to another container")
	// ErrUnreadable: the record or its binding is there and cannot be used.
	ErrUnreadable = errors.New("the allocation's record cannot be used")
)

// Store reads the records of a folder and binds them. Any number of processes
// may do so at once, beside the one [Recorder] that writes and ends them.
type Store struct {
	folder string
}

// OpenStore returns the store in folder, which need not exist yet.
func OpenStore(folder string) *Store { return &Store{folder: folder} }

// Get returns the record that token stands for. Its errors match
// [ErrNotFound] or [ErrUnreadable] and name the file.
func (s *Store) Get(token Token) (Record, error) {
	path := s.path(token, recordSuffix)
	data, err := s.read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Record{}, fmt.Errorf("%w (%s)", ErrNotFound, path)
	case err != nil:
		return Record{}, err
	}
	r, err := decodeRecord(data, token)
	if err != nil {
		return Record{}, fmt.Errorf("%w: %s: %w", ErrUnreadable, path, err)
	}
	return r, nil
}

// Holder returns the container that token's record is bound to; ok is false
// when no container has presented it yet.
func (s *Store) Holder(token Token) (holder Holder, ok bool, err error) {
	path := s.path(token, bindingSuffix)
	data, err := s.read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Holder{}, false, nil
	case err != nil:
		return Holder{}, false, err
	}
	b, err := decodeBinding(data, token)
	if err != nil {
		return Holder{}, false, fmt.Errorf("%w: %s: %w", ErrUnreadable, path, err)
	}
	return b.Holder, true, nil
}

// Bind returns the record that token stands for, once it is bound to holder:
// by this call or by an earlier one, in this process or in another. An error
// that matches [ErrHeld] tells that another container has it.
func (s *Store) Bind(token Token, holder Holder) (Record, error) {
	record, err := s.Get(token)
	if err != nil {
		return Record{}, err
	}
	bound, ok, err := s.Holder(token)
	if err != nil {
		return Record{}, err
	}
	if !ok {
		if bound, err = s.bind(token, holder); err != nil {
			return Record{}, err
		}
	}
	if !bound.Same(holder) {
		return Record{}, fmt.Errorf("%w: %s", ErrHeld, bound)
	}
	return record, nil
}

// bind makes token's binding file and returns who holds the record after
// that, which is somebody else when another process was quicker.
func (s *Store) bind(token Token, holder Holder) (Holder, error) {
	data, err := encode(kindBinding, binding{Token: token, Holder: holder, BoundAt: time.Now().UTC()})
	if err != nil {
		return Holder{}, fmt.Errorf("bind allocation %s: %w", token, err)
	}
	err = durable.Create(s.path(token, bindingSuffix), data, 0o600)
	switch {
	case err == nil:
		return holder, nil
	case !errors.Is(err, fs.ErrExist):
		return Holder{}, fmt.Errorf("bind allocation %s: %w", token, err)
	}
	bound, ok, err := s.Holder(token)
	if err != nil {
		return Holder{}, err
	}
	if !ok {
		return Holder{}, fmt.Errorf("bind allocation %s: it ended meanwhile: %w", token, ErrNotFound)
	}
	return bound, nil
}

func (s *Store) path(token Token, suffix string) string {
	return filepath.Join(s.folder, string(token)+suffix)
}

// read returns the content of a record or binding file, and refuses to
// believe what somebody else could have put into the folder.
func (s *Store) read(path string) ([]byte, error) {
	f, err := durable.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if err := durable.CheckPrivate(s.folder); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return data, nil
}
