//go:build unix

package shimfile

import "os"

// rename moves the program temp to path.
func rename(temp, path string) error { return os.Rename(temp, path) }

// removeAll removes the file or directory at path.
func removeAll(path string) error { return os.RemoveAll(path) }
