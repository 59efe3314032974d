//go:build tools

// Package runc pins the newest runc.
package runc

import (
	_ "github.com/opencontainers/runc"
)
