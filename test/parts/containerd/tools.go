//go:build tools

// Package containerd pins the stock containerd that the end-to-end suites run.
// It is a module of its own so that the daemon's dependencies never move ours.
package containerd

import (
	_ "github.com/containerd/containerd/cmd/containerd"
	_ "github.com/containerd/containerd/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/cmd/ctr"
)
