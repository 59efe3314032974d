//go:build !windows

package terminal

import "os"

// showsColor tells whether the terminal understands ECMA-48 sequences. All do,
// or TERM says so.
func showsColor(*os.File) bool { return true }
