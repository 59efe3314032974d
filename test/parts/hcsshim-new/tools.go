//go:build tools

// Package hcsshimnew pins the newest stock runtime shim for Windows. The module proxy does
// not have the version of cosesign1go that it needs: the directory cosesign1go replaces it.
// It is a module of its own because containerd 2 names an earlier one.
package hcsshimnew

import (
	_ "github.com/Microsoft/hcsshim/cmd/containerd-shim-runhcs-v1"
)
