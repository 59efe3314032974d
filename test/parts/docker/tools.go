//go:build tools

// Package docker pins the stock Docker that CDI specifications are tried with. It is
// a module of its own so that its dependencies never move ours.
package docker

import (
	_ "github.com/docker/cli/cmd/docker"
	_ "github.com/docker/docker/cmd/dockerd"
)
