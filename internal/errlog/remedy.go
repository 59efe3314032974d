package errlog

// RemedyError is an error with the remedy for its cause. 'dxctl doctor' prints the two separately.
type RemedyError struct {
	Err    error
	Remedy string
}

// WithRemedy returns err with a remedy.
func WithRemedy(err error, remedy string) error { return &RemedyError{err, remedy} }

// Error returns the error and the remedy.
func (e *RemedyError) Error() string { return e.Err.Error() + "; " + e.Remedy }

// Unwrap returns the error without the remedy.
func (e *RemedyError) Unwrap() error { return e.Err }
