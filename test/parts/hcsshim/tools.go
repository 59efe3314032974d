//go:build tools

// Package hcsshim pins the stock runtime shim for Windows that the end-to-end
// suite runs, at the version that containerd's module beside this one names. It
// is a module of its own because it needs other versions of containerd's packages.
//
// `go mod tidy` looks at the files of every operating system, so GOOS makes no
// difference to it; the program itself builds with GOOS=windows alone.
package hcsshim

import (
	_ "github.com/Microsoft/hcsshim/cmd/containerd-shim-runhcs-v1"
)
