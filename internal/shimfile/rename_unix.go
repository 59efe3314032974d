//go:build unix

package shimfile

import "os"

// rename moves the program temp to path.
func rename(temp, path string) error { return os.Rename(temp, path) }

// isBusy is false: a running program can be replaced and removed.
func isBusy(error) bool { return false }
