//go:build unix

package unixsocket

import (
	"errors"
	"syscall"
)

// isRefused tells from the error of a dial that nobody listens.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
