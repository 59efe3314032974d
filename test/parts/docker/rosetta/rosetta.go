// Package rosetta stands in for github.com/tonistiigi/go-rosetta, which the module proxy does not have.
package rosetta

// Enabled reports whether macOS translates this program.
func Enabled() bool { return false }
