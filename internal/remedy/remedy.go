// Package remedy gives errors the remedies for their causes. A remedy ends the text of its error: wrap
// such an error at the end of the new text. A question, as in "is containerd running?", is no remedy.
package remedy

import (
	"errors"
	"strings"
)

// Rewrite is the remedy for a compiled file that cannot be read.
const Rewrite = "run 'dxctl config apply', or restart directx-advertiser, to write it again"

// remedyError is an error with the remedy for its cause.
type remedyError struct {
	error
	remedy string
}

// With returns err with a remedy, or err itself if it has one: the innermost is the most specific.
func With(err error, remedy string) error {
	if _, own := Split(err); own != "" {
		return err
	}
	return &remedyError{err, remedy}
}

func (e *remedyError) Error() string { return e.error.Error() + "; " + e.remedy }

func (e *remedyError) Unwrap() error { return e.error }

// Split returns the text of err without its remedy, and the remedy, "" if it has none.
func Split(err error) (text, remedy string) {
	if e, ok := errors.AsType[*remedyError](err); ok {
		remedy = e.remedy
	}
	return strings.TrimSuffix(err.Error(), "; "+remedy), remedy
}
