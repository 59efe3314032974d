//go:build tools

// Package eks pins the containerd of Windows nodes of EKS, and the runhcs that it names.
package eks

import (
	_ "github.com/Microsoft/hcsshim/cmd/containerd-shim-runhcs-v1"
	_ "github.com/containerd/containerd/v2/cmd/containerd"
)
