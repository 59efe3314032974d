//go:build tools

// Package containerd2 pins the newest stock containerd that builds with this
// repository's Go. It is a module of its own so that the daemon's dependencies
// never move ours.
package containerd2

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
