//go:build tools

// Package aks1 pins the containerd 1.7 of Windows nodes of AKS. It names the runhcs of the
// module hcsshim.
package aks1

import (
	_ "github.com/containerd/containerd/cmd/containerd"
)
