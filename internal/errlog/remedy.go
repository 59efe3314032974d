package errlog

import (
	"slices"
	"strings"
)

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

// RemedyOf returns the remedies of err, "" if it has none.
func RemedyOf(err error) string {
	switch err := err.(type) { //nolint:errorlint // All errors that err wraps are visited.
	case *remedyError:
		return err.remedy
	case interface{ Unwrap() error }:
		return RemedyOf(err.Unwrap())
	case interface{ Unwrap() []error }:
		var all []string
		for _, err := range err.Unwrap() {
			if remedy := RemedyOf(err); remedy != "" && !slices.Contains(all, remedy) {
				all = append(all, remedy)
			}
		}
		return strings.Join(all, "; ")
	}
	return ""
}

// Text returns the text of err, followed by its remedies, or "" if err is nil.
func Text(err error) string {
	if err == nil {
		return ""
	}
	if remedy := RemedyOf(err); remedy != "" {
		return err.Error() + "; " + remedy
	}
	return err.Error()
}
