//go:build tools

// Package nerdctl pins the stock nerdctl that dxctl's flags are tried with. It is
// a module of its own so that its dependencies never move ours.
package nerdctl

import (
	_ "github.com/containerd/nerdctl/cmd/nerdctl"
)
