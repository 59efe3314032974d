//go:build tools

// Package aks2 pins the containerd 2 of Windows nodes of AKS, and the runhcs that it names.
package aks2

import (
	_ "github.com/Microsoft/hcsshim/cmd/containerd-shim-runhcs-v1"
	_ "github.com/containerd/containerd/v2/cmd/containerd"
)
