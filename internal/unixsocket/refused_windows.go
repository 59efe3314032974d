package unixsocket

import (
	"errors"

	"golang.org/x/sys/windows"
)

// isRefused tells from the error of a dial that nobody listens.
func isRefused(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }
