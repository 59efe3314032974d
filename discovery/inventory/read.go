package inventory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"directx-nri/internal/durable"
)

// errUnsettled tells that the file changes faster than it can be read.
var errUnsettled = errors.New("it changes all the time; stop whatever rewrites it, or replace it by renaming another file over it")

// reader reads a file that others may be writing. Its parts are fields so that
// a test can be that other.
type reader struct {
	path string
	open func(path string) (fs.File, error)
	now  func() time.Time
	wait func(ctx context.Context, d time.Duration) error

	// settle is how long a file must have been left alone to be believed. It
	// is more than any file system's time step but FAT's, so a later change
	// cannot go unnoticed.
	settle time.Duration
	// rounds is how often a file that does not settle is read, retries how
	// often after an error that may pass.
	rounds, retries int
}

func newReader(path string) reader {
	return reader{
		path:   path,
		open:   func(path string) (fs.File, error) { return durable.Open(path) },
		now:    time.Now,
		wait:   wait,
		settle: 25 * time.Millisecond,
		rounds: 20, retries: 3,
	}
}

// read returns the file's content and the stamp of its version. An error of
// ctx comes as it is; every other one says what to do about the file.
func (r reader) read(ctx context.Context) (data []byte, stamp fs.FileInfo, err error) {
	var before fs.FileInfo
	for round := range r.rounds {
		// The clock is read first: a file that was left alone until then cannot
		// change later and keep its time.
		started := r.now()
		data, stamp, err = r.once()
		switch {
		case err == nil:
			age := started.Sub(stamp.ModTime())
			// A time in the future comes from another machine's clock, or from
			// before ours was set back: staying the same is all there is to ask.
			if age >= r.settle || age < -r.settle && before != nil && sameVersion(before, stamp) {
				return data, stamp, nil
			}
			before, err = stamp, errUnsettled
		case round >= r.retries || !passing(err):
			return nil, nil, explain(err)
		}
		if waitErr := r.wait(ctx, r.settle); waitErr != nil {
			return nil, nil, waitErr
		}
	}
	return nil, nil, explain(err)
}

// once reads the file once. The content is that of the stamp: nothing touched
// the file meanwhile, as far as its stamp tells.
func (r reader) once() (data []byte, stamp fs.FileInfo, err error) {
	for range r.rounds {
		// Opening a named pipe would block.
		info, err := os.Stat(r.path)
		if err != nil {
			return nil, nil, err
		}
		if !info.Mode().IsRegular() {
			return nil, nil, errors.New("it is not a regular file; name the YAML file itself")
		}
		if info.Size() > maxFileSize {
			return nil, nil, fmt.Errorf("it has %d bytes; at most %d are allowed", info.Size(), maxFileSize)
		}
		data, before, after, err := r.content()
		if err != nil {
			return nil, nil, err
		}
		// The path is asked once more: another file may have been renamed over it.
		now, err := os.Stat(r.path)
		if err == nil && sameVersion(before, after) && sameVersion(after, now) && int64(len(data)) == after.Size() {
			return data, after, nil
		}
	}
	return nil, nil, errUnsettled
}

// content reads the file between two looks at it. The stamps come from the
// open file: on Windows those of a path look their identity up only when they
// are compared, and the path may then be another file's.
func (r reader) content() (data []byte, before, after fs.FileInfo, err error) {
	f, err := r.open(r.path)
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if before, err = f.Stat(); err != nil {
		return nil, nil, nil, err
	}
	if data, err = io.ReadAll(io.LimitReader(f, maxFileSize+1)); err != nil {
		return nil, nil, nil, err
	}
	if after, err = f.Stat(); err != nil {
		return nil, nil, nil, err
	}
	return data, before, after, nil
}

// passing tells whether an error of the file system may go away by itself in
// a moment, as Windows' sharing violation does.
func passing(err error) bool {
	var failed *fs.PathError
	return errors.As(err, &failed) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission)
}

// explain adds what to do about an error of the file system, and leaves the
// path out, which the caller names.
func explain(err error) error {
	var failed *fs.PathError
	if !errors.As(err, &failed) {
		return err
	}
	switch err := failed.Err; {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w; create the file, or start the program with the right path", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; let the program's user read the file", err)
	default:
		return fmt.Errorf("%s: %w; see that the path leads to a readable file", failed.Op, err)
	}
}

// sameVersion tells whether two looks saw the same version of the same file.
func sameVersion(a, b fs.FileInfo) bool {
	return a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && os.SameFile(a, b)
}

// wait waits for d or the end of ctx, whose cause it then returns.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
