//go:build tools

// Package hcsshimnew pins the newest stock runtime shim for Windows that builds
// here: later ones (v0.15) need a version of cosesign1go that the module proxy
// does not have. It is a module of its own because containerd 2 names such a
// later one.
package hcsshimnew

import (
	_ "github.com/Microsoft/hcsshim/cmd/containerd-shim-runhcs-v1"
)
