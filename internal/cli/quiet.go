package cli

import "fmt"

// quietError is an exit status about which nothing is left to say.
type quietError struct{ status int }

func (e quietError) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// Quiet returns an error with which the program ends with that exit status and
// prints nothing: who ran another program ends as that one did.
func Quiet(status int) error { return quietError{status} }
