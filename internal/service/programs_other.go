//go:build !windows

package service

// Programs is there on Windows only.
func Programs(string) []string { return nil }
