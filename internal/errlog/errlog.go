// Package errlog gives errors the remedies for their causes, and logs errors in one line, once while
// they persist. The text of an error is without its remedy: [Text] has both, for where an error is
// printed, logged or sent. A question, as in "is containerd running?", is no remedy.
package errlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/sirupsen/logrus"
)

// NewLogger returns a logger that writes to out. It logs errors with their remedies. A caller does not wait for a
// disk, or a reader of the log, that hangs: lines are lost then.
func NewLogger(out io.Writer) *logrus.Logger {
	log := logrus.New() //nolint:forbidigo // This function is used instead.
	log.SetOutput(&boundedWriter{out: out})
	log.AddHook(remedyHook{})
	return log
}

// lineTimeout is how long a line may take. A hook of the container runtime may wait for it.
const lineTimeout = 200 * time.Millisecond

// boundedWriter loses lines while one takes longer than lineTimeout. One goroutine at a time calls it.
type boundedWriter struct {
	out     io.Writer
	writing atomic.Bool
}

// Write implements [io.Writer].
func (w *boundedWriter) Write(line []byte) (int, error) {
	if !w.writing.CompareAndSwap(false, true) {
		return len(line), nil
	}
	own, written := bytes.Clone(line), make(chan struct{})
	go func() {
		_, _ = w.out.Write(own)
		w.writing.Store(false)
		close(written)
	}()
	select {
	case <-written:
	case <-time.After(lineTimeout):
	}
	return len(line), nil
}

// remedyHook adds the remedies to the error of an entry.
type remedyHook struct{}

func (remedyHook) Levels() []logrus.Level { return logrus.AllLevels }

func (remedyHook) Fire(entry *logrus.Entry) error {
	if err, ok := entry.Data[logrus.ErrorKey].(error); ok {
		entry.Data[logrus.ErrorKey] = Text(err)
	}
	return nil
}

// LastError is the text of the last error of an operation that is repeated, "" after a success.
// With it, an error that persists is logged once.
type LastError string

// Changed reports whether err, nil for a success, differs from the last error, and makes it the
// last error.
func (l *LastError) Changed(err error) bool {
	before := *l
	*l = LastError(Text(err))
	return *l != before
}

// Log calls [LastError.Changed]. It logs an error that differs with the message failed, and the
// first success after an error with the message recovered.
func (l *LastError) Log(log logrus.FieldLogger, err error, failed, recovered string) {
	changed := l.Changed(err)
	switch {
	case changed && err != nil:
		log.WithError(err).Error(failed)
	case changed:
		log.Info(recovered)
	}
}

// OneLine returns text as one line without control characters, which drivers and foreign files
// may contain: they move the cursor, or worse.
func OneLine(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool { return !unicode.IsPrint(r) }), " ")
}

// ErrInternal is the error of a recovered panic.
var ErrInternal = errors.New("internal error in directx-nri, please report it")

// PanicError returns an error that matches [ErrInternal] for the cause of a panic, with the innermost calls in which
// it occurred. The deferred function that recovers the panic must call it directly.
func PanicError(cause any) error {
	pcs := make([]uintptr, 8)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)]) // 3: without the deferred function
	var calls []string
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		if !strings.HasPrefix(frame.Function, "runtime.") { // such as runtime.gopanic
			calls = append(calls, fmt.Sprintf("%s:%d", path.Base(frame.File), frame.Line))
		}
	}
	return fmt.Errorf("%w: %v (%s)", ErrInternal, cause, strings.Join(calls, ", "))
}
