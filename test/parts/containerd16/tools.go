//go:build tools

// Package containerd16 pins the last stock containerd of the 1.6 series. It is a
// module of its own so that the daemon's dependencies never move ours.
package containerd16

import (
	_ "github.com/containerd/containerd/cmd/containerd"
	_ "github.com/containerd/containerd/cmd/ctr"
)
