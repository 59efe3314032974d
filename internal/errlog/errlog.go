// Package errlog prepares errors for logs: an error is one line, and is logged once while it persists.
package errlog

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"unicode"

	"github.com/sirupsen/logrus"
)

// LastError is the text of the last error of an operation that is repeated, "" after a success.
// With it, an error that persists is logged once.
type LastError string

// Changed reports whether err, nil for a success, differs from the last error, and makes it the
// last error.
func (l *LastError) Changed(err error) bool {
	before := *l
	*l = ""
	if err != nil {
		*l = LastError(err.Error())
	}
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

// PanicError logs a recovered panic with its stack, and returns it as an error that matches
// [ErrInternal].
func PanicError(log logrus.FieldLogger, cause any) error {
	log.WithField("stack", string(debug.Stack())).Error(cause)
	return fmt.Errorf("%w: %v", ErrInternal, cause)
}
