//go:build unix

package shimfile

import "os"

// put gives the file from the name path, in one step.
func put(from, path string, _ bool) error { return os.Rename(from, path) }

// isBusy is never true: a program that runs can be replaced and removed.
func isBusy(error) bool { return false }

// isLatest tells whether the running program may speak for the file at path.
func isLatest(path string) bool { return !isReplaced(path) }

// isReplaced tells whether the running program was started from path and
// another file is there now.
func isReplaced(path string) bool {
	if self, err := os.Executable(); err != nil || self != path {
		return false
	}
	own, ownErr := os.Stat("/proc/self/exe")
	now, nowErr := os.Stat(path)
	return ownErr == nil && nowErr == nil && !os.SameFile(own, now)
}
