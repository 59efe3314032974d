package errlog

import "errors"

// RunDoctor is the remedy of an error that has no better one.
const RunDoctor = "run 'dxctl doctor' on this node"

// Rewrite is the remedy for a compiled file that cannot be read.
const Rewrite = "run 'dxctl config apply', or restart directx-advertiser, to write it again"

// remedyError is an error with the remedy for its cause.
type remedyError struct {
	error
	remedy string
}

func (e *remedyError) Unwrap() error { return e.error }

// WithRemedy adds a remedy to err, unless it has one: the innermost is the most specific. It adds none to nil.
func WithRemedy(err error, remedy string) error {
	if err == nil || remedy == "" || RemedyOf(err) != "" {
		return err
	}
	return &remedyError{err, remedy}
}

// RemedyOf returns the remedy of err, "" if it has none: the first one of several errors.
func RemedyOf(err error) string {
	if e, ok := errors.AsType[*remedyError](err); ok {
		return e.remedy
	}
	return ""
}

// Text returns the text of err, followed by its remedy, in one line: see [OneLine]. It is "" if err is nil.
func Text(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if remedy := RemedyOf(err); remedy != "" {
		text += "; " + remedy
	}
	return OneLine(text)
}
